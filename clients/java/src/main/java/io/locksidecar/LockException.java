package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.util.Locale;

/**
 * The base of everything that this package throws by itself, except for the {@link IllegalMonitorStateException} of
 * {@link java.util.concurrent.locks.Lock#unlock}. It is unchecked. An acquire that throws has acquired nothing.
 *
 * <p>The {@linkplain #code code} tells what went wrong. The subclasses are for the cases that programs usually handle.
 */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** What went wrong. */
    public enum Code {
        /** Another owner holds the lock, or waits for it; a {@link NotAcquiredException}. */
        BUSY(1),
        /** The wait is over, or the daemon allows no wait that long; a {@link NotAcquiredException}. */
        TIMEOUT(2),
        /** This owner does not hold the lock; a {@link NotHeldException}. */
        NOT_HELD(3),
        /** The wait was withdrawn; a {@link NotAcquiredException}. */
        CANCELED(4),
        /**
         * This owner holds the lock shared and asks for it exclusively. Two owners that did so would wait for each other
         * forever. Release the read lock first. A {@link NotAcquiredException}.
         */
        UPGRADE(5),
        /** The store or the daemon does not answer; an {@link UnavailableException}. */
        UNAVAILABLE(6),
        /**
         * The lock was released here, but the store has not confirmed that. The daemon continues to try; until then, the lock
         * may look held.
         */
        UNKNOWN(7),
        /** A limit of the daemon is reached. */
        LIMIT(8),
        /** A key, a TTL, a wait or another argument is out of range. */
        INVALID(9),
        /** The daemon, or the store of the key, cannot do this. */
        UNSUPPORTED(10),
        /** The daemon is going away and grants no new locks; an {@link UnavailableException}. */
        DRAINING(11),
        /** This process may not use this lock. */
        DENIED(12),
        /** The other side does not speak the protocol. The connection has ended. */
        BAD_FRAME(13),
        /** The daemon and this client have no version of the protocol in common. */
        BAD_VERSION(14),
        /** This process did not read what the daemon sent, and the connection has ended; an {@link UnavailableException}. */
        TOO_SLOW(15),
        /** The answer does not fit into a message of the protocol. */
        OVERLONG(16),
        /** This thread holds the key through another handle, and would wait for itself. */
        ALREADY_HELD(-1),
        /** The connection has ended, and every hold with it, or this client is closed; an {@link UnavailableException}. */
        CLOSED(-1),
        /** A code of a later version of the daemon, which this client does not know. */
        OTHER(-1);

        /** The number in the protocol; negative if it has none. */
        final int number;

        Code(int number) {
            this.number = number;
        }

        /** Returns the name in the protocol. */
        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** What went wrong. */
    private final Code code;

    /**
     * Makes an exception.
     *
     * @param code what went wrong
     * @param message the same for people
     * @param cause the cause, or null
     */
    protected LockException(Code code, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    LockException(Code code, String message) {
        this(code, message, null);
    }

    /**
     * Returns what went wrong.
     *
     * @return the code
     */
    public final Code code() {
        return code;
    }

    /** Makes the exception of a code. */
    static LockException of(Code code, String message, Throwable cause) {
        return switch (code) {
            case BUSY, TIMEOUT, CANCELED, UPGRADE -> new NotAcquiredException(code, message);
            case NOT_HELD -> new NotHeldException(message);
            case UNAVAILABLE, DRAINING, TOO_SLOW, CLOSED -> new UnavailableException(code, message, cause);
            default -> new LockException(code, message, cause);
        };
    }

    /** Makes the exception of a failed reply. */
    static LockException reply(long number, String text) {
        Code code = Code.OTHER;
        for (Code c : Code.values()) {
            code = c.number == number ? c : code;
        }
        String name = code == Code.OTHER ? "code " + number : code.toString();
        return of(code, text.isEmpty() ? name : name + ": " + text, null);
    }

    /** Tells whether the two sides do not speak the same protocol. */
    boolean isProtocol() {
        return code == Code.BAD_FRAME || code == Code.BAD_VERSION;
    }

    /** Gives this, which may have been made on another thread, a stack trace of the current one; returns this. */
    LockException here() {
        fillInStackTrace();
        return this;
    }

    /** Makes an equal exception with a stack trace of the current thread. */
    LockException again() {
        return of(code, getMessage(), getCause());
    }
}
