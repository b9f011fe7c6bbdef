package io.locksidecar;

/**
 * The lock could not be had: it is held by somebody else, or the wait ran out. Thrown where there is
 * no {@code false} to return: by {@link Sidecar#lease(String, java.time.Duration)}, and by a
 * {@code lock()} without bound that outlasts the longest wait that the daemon allows.
 */
public class NotAcquiredException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public NotAcquiredException(String message) {
        super(message);
    }
}
