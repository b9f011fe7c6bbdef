package io.locksidecar;

/**
 * This process may not use this lock.
 */
public class DeniedException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public DeniedException(String message) {
        super(message);
    }
}
