package io.locksidecar;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;

/** The numbers of PROTOCOL.md, section 5, and the one table from them to exceptions. */
final class Codes {
    static final int VERSION = 1;

    static final int HELLO = 1;
    static final int ACQUIRE = 2;
    static final int RELEASE = 3;
    static final int RENEW = 4;
    static final int DOWNGRADE = 5;
    static final int CANCEL = 6;
    static final int INSPECT = 7;
    static final int ACQUIRE_MANY = 8;
    static final int RELEASE_MANY = 9;
    static final int PING = 10;

    static final int LOST = 64;
    static final int KEEPALIVE = 65;
    static final int GOING_AWAY = 66;
    static final int FATAL = 67;

    static final int OK = 0;
    static final int BUSY = 1;
    static final int TIMEOUT = 2;
    static final int NOT_HELD = 3;
    static final int UNKNOWN = 7;
    static final int DRAINING = 11;

    static final int EXCLUSIVE = 0;
    static final int SHARED = 1;
    static final int PERMIT = 2;

    /** Flag of an acquire: only the client renews. */
    static final int FIXED = 1;
    /** Flag of a release: answer before the store has confirmed. */
    static final int ASYNC = 1;
    /** Flag of a release: the whole hold, whatever its count. */
    static final int ALL = 2;

    /** Flag of an inspect: name the holders. */
    static final int HOLDERS = 1;

    /** The payload's limit before a welcome states another one. */
    static final int MAX_FRAME = 65536;
    static final int MAX_KEY = 512;
    static final int MAX_KEYS = 1024;
    static final int MAX_PERMITS = 10_000;
    static final int MAX_NAME = 128;
    static final long MAX_WAIT = 1L << 40;

    /** The name of a code, and the exception for it. */
    record Failure(String name, Function<String, LockException> make) {}

    static final Map<Integer, Failure> FAILURES = Map.ofEntries(
            Map.entry(BUSY, new Failure("busy", NotAcquiredException::new)),
            Map.entry(TIMEOUT, new Failure("timeout", NotAcquiredException::new)),
            Map.entry(NOT_HELD, new Failure("not_held", NotHeldException::new)),
            Map.entry(4, new Failure("canceled", CanceledException::new)),
            Map.entry(5, new Failure("upgrade", UpgradeException::new)),
            Map.entry(6, new Failure("unavailable", UnavailableException::new)),
            Map.entry(UNKNOWN, new Failure("unknown", UnconfirmedException::new)),
            Map.entry(8, new Failure("limit", LimitException::new)),
            Map.entry(9, new Failure("invalid", InvalidException::new)),
            Map.entry(10, new Failure("unsupported", UnsupportedException::new)),
            Map.entry(DRAINING, new Failure("draining", DrainingException::new)),
            Map.entry(12, new Failure("denied", DeniedException::new)),
            Map.entry(13, new Failure("bad_frame", ProtocolException::new)),
            Map.entry(14, new Failure("bad_version", ProtocolException::new)),
            Map.entry(15, new Failure("too_slow", ConnectionLostException::new)),
            Map.entry(16, new Failure("overlong", LimitException::new)));

    static final Map<Integer, String> REASONS = Map.of(
            1, "expired",
            2, "gone",
            3, "fixed_end",
            4, "forced",
            5, "session",
            6, "shutdown",
            7, "too_long",
            8, "silent");

    /** The constructor of each kind of failure, by its class. */
    private static final Map<Class<?>, Function<String, LockException>> MAKERS = new HashMap<>();

    static {
        FAILURES.values().forEach(f -> MAKERS.put(f.make().apply("").getClass(), f.make()));
    }

    private Codes() {}

    /** Returns the exception for a failed reply. A code of a later version becomes a plain LockException. */
    static LockException failure(long code, String text) {
        Failure f = FAILURES.get((int) code);
        String name = f == null ? "code " + code : f.name();
        String message = text.isEmpty() ? name : name + ": " + text;
        return f == null ? new LockException(message) : f.make().apply(message);
    }

    /** Makes an exception of the same kind for another thread, with a stack trace of its own and the same cause. */
    static LockException again(LockException e) {
        LockException other = MAKERS.getOrDefault(e.getClass(), LockException::new).apply(e.getMessage());
        if (e.getCause() != null) {
            other.initCause(e.getCause());
        }
        return other;
    }

    static String reason(long reason) {
        String name = reason > Integer.MAX_VALUE ? null : REASONS.get((int) reason);
        return name == null ? "reason " + reason : name;
    }
}
