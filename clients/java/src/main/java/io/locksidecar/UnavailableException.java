package io.locksidecar;

/**
 * No answer can be had: from the store, or from the daemon itself.
 */
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
