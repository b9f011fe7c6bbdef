package io.locksidecar;

/** This owner does not hold the lock. */
public class NotHeldException extends LockException {
    private static final long serialVersionUID = 1L;

    NotHeldException(String message) {
        super(Code.NOT_HELD, message);
    }
}
