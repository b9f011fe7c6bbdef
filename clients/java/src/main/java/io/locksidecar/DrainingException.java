package io.locksidecar;

/** The daemon is going away and grants no new locks. */
public class DrainingException extends UnavailableException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public DrainingException(String message) {
        super(message);
    }
}
