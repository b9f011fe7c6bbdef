package io.locksidecar;

/**
 * The base of everything that this package throws by itself, but for the
 * {@link IllegalMonitorStateException} that {@link java.util.concurrent.locks.Lock#unlock} asks for.
 *
 * <p>An acquire that throws has acquired nothing.
 */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public LockException(String message) {
        super(message);
    }

    /**
     * Makes one with a cause.
     *
     * @param message what happened, for people
     * @param cause what it came from
     */
    public LockException(String message, Throwable cause) {
        super(message, cause);
    }
}
