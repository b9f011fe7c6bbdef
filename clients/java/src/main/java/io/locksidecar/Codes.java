package io.locksidecar;

import java.util.List;

/** The numbers of PROTOCOL.md, section 5, except for the codes of failures: see {@link LockException.Code}. */
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
    static final int ACQUIRE_ANY = 13;
    static final int FORCE_UNLOCK = 14;

    static final int LOST = 64;
    static final int KEEPALIVE = 65;
    static final int FATAL = 67;
    static final int RELEASE_FAILED = 68;

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
    /** Flag of a release: answer only if it fails, and by a push. */
    static final int QUIET = 4;
    /** Flag of a release: a detached hold, of any session. */
    static final int DETACHED = 8;
    /** Flag of a release: end the hold even if it is to be kept for longer. */
    static final int NOW = 16;
    /** The id of all quiet releases: the id of hello, which was answered. */
    static final long QUIET_ID = 1;

    /** Flag of an inspect: name the holders. */
    static final int HOLDERS = 1;

    /** The payload's limit before a welcome states another one. */
    static final int MAX_FRAME = 65536;
    static final int MAX_KEY = 512;
    static final int MAX_KEYS = 1024;
    static final int MAX_ANY = 64;
    static final int MAX_PERMITS = 10_000;
    static final int MAX_NAME = 128;
    static final long MAX_WAIT = 1L << 40;

    /** The reasons of a loss; the number of the first is 1. */
    static final List<String> REASONS =
            List.of("expired", "gone", "fixed_end", "forced", "session", "shutdown", "too_long", "silent");

    private Codes() {}

    static String reason(long reason) {
        return reason > 0 && reason <= REASONS.size() ? REASONS.get((int) reason - 1) : "reason " + reason;
    }
}
