package io.locksidecar;

/**
 * A limit of the daemon is reached.
 */
public class LimitException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public LimitException(String message) {
        super(message);
    }
}
