package io.locksidecar;

/**
 * The lock was not acquired: another owner holds it, or the wait is over or withdrawn. Methods that return {@code false} or
 * an empty {@link java.util.Optional} for that do not throw it, unless an {@linkplain LockException.Code#UPGRADE upgrade} is
 * refused.
 */
public class NotAcquiredException extends LockException {
    private static final long serialVersionUID = 1L;

    NotAcquiredException(Code code, String message) {
        super(code, message);
    }
}
