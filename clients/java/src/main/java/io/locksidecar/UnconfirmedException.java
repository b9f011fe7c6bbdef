package io.locksidecar;

/**
 * A release was carried out here, but the store has not confirmed it yet.
 *
 * <p>Nothing has to be done: the daemon goes on until it has. Until then the lock may look held.
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
