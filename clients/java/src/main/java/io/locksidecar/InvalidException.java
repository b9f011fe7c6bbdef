package io.locksidecar;

/** A request is invalid: a key, a TTL or a wait is out of range. */
public class InvalidException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public InvalidException(String message) {
        super(message);
    }
}
