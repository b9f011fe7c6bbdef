package io.locksidecar;

/**
 * The wait was withdrawn.
 */
public class CanceledException extends NotAcquiredException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public CanceledException(String message) {
        super(message);
    }
}
