package io.locksidecar;

/**
 * This owner does not hold the lock.
 */
public class NotHeldException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public NotHeldException(String message) {
        super(message);
    }
}
