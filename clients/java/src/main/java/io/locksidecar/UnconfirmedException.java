package io.locksidecar;

/**
 * The lock was released here, but the store has not confirmed that yet.
 *
 * <p>The caller need not do anything: the daemon keeps trying. Until the store confirms, the lock may look held.
 */
public class UnconfirmedException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public UnconfirmedException(String message) {
        super(message);
    }
}
