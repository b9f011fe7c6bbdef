package io.locksidecar;

/**
 * The daemon or this client has broken the protocol, or they have no version of it in common. The connection has ended.
 */
public class ProtocolException extends LockException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one.
     *
     * @param message what happened, for people
     */
    public ProtocolException(String message) {
        super(message);
    }

    /**
     * Makes one with a cause.
     *
     * @param message what happened, for people
     * @param cause what it came from
     */
    public ProtocolException(String message, Throwable cause) {
        super(message, cause);
    }
}
