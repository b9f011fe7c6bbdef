package io.locksidecar;

/** The store or the daemon does not answer, or the connection to the daemon has ended. */
public class UnavailableException extends LockException {
    private static final long serialVersionUID = 1L;

    UnavailableException(Code code, String message) {
        super(code, message);
    }

    UnavailableException(Code code, String message, Throwable cause) {
        super(code, message, cause);
    }
}
