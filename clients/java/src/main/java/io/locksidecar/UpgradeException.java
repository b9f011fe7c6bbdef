package io.locksidecar;

/**
 * This owner holds the lock shared and asked for it exclusively. That could never be granted, because two owners that
 * did so would wait for each other forever. Release the read lock first.
 */
public class UpgradeException extends NotAcquiredException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public UpgradeException(String message) {
        super(message);
    }
}
