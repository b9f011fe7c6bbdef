package io.locksidecar;

/**
 * This thread holds the key already, through another handle, and the acquire would wait for that: mostly for ever.
 * It is thrown instead of waiting; a try, which does not wait, says no as it does to any other owner.
 *
 * <p>To acquire again what the thread holds, use the handle that holds it, or set {@link LockOptions#owner} or {@link
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
