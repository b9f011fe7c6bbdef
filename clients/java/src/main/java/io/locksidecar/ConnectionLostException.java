package io.locksidecar;

/**
 * The connection to the daemon has ended, and with it every hold; or the client is closed.
 */
public class ConnectionLostException extends UnavailableException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public ConnectionLostException(String message) {
        super(message);
    }

    /**
     * Makes one with a cause.
     *
     * @param message what happened, for people
     * @param cause what it came from
     */
    public ConnectionLostException(String message, Throwable cause) {
        super(message, cause);
    }
}
