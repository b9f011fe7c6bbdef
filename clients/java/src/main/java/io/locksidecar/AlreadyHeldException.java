package io.locksidecar;

/**
 * This thread already holds the key through another handle, and the acquire would wait for that one, usually forever.
 * The exception is thrown instead of waiting. A try, which does not wait, fails as it does for any other owner.
 * If that handle has lost the lock, both throw {@link LostException} until it has released it.
 *
 * <p>To acquire the lock again, use the handle that holds it, or set {@link LockOptions#owner} or {@link
 * LockOptions#ownedByThread} for all handles that are to share one hold.
 */
public class AlreadyHeldException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public AlreadyHeldException(String message) {
        super(message);
    }
}
