package io.locksidecar;

/**
 * The daemon, or its store, cannot do this.
 */
public class UnsupportedException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public UnsupportedException(String message) {
        super(message);
    }
}
