package io.locksidecar;

/** The store, or the daemon itself, does not answer. */
public class UnavailableException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public UnavailableException(String message) {
        super(message);
    }

    /**
     * Makes one with a cause.
     *
     * @param message what happened, for people
     * @param cause what it came from
     */
    public UnavailableException(String message, Throwable cause) {
        super(message, cause);
    }
}
