package io.locksidecar;

/**
 * Held shared by this owner and asked for exclusively. It could never be granted, since two who did
 * that would wait for each other for ever: release the read lock first.
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
