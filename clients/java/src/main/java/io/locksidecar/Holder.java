package io.locksidecar;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.regex.Pattern;

/**
 * A holder of a lock, or of a permit of a semaphore, on any host, as the daemon could name it when it was asked. It may have
 * released the lock meanwhile. Hosts and clients choose their names, and every program that can write to the store can claim
 * any name. So show names as text, and do not base decisions on them.
 *
 * @param kind what it is
 * @param host the host of its daemon; empty if not known
 * @param version the version of its daemon; empty if not known
 * @param daemonPid the process id of its daemon on that host; 0 if not known
 * @param daemonStarted the start of that process, by the clock of that host; empty if not known
 * @param held the time since it was granted; empty if the store does not record it
 * @param left the time until its lease ends unless it is renewed; empty if not known
 * @param name its name in the store's terms; empty for a client of this host's daemon
 * @param note a remark, such as the Redlock nodes that disagree; usually empty
 * @param session the session of a client of this host's daemon; 0 for other holders
 * @param pid the process id of that client; 0 if not known
 * @param uid the user id of that client; -1 if not known
 * @param client the name and label of that client; empty if not known
 * @param fence the fence of that client; 0 if not known
 */
public record Holder(
        Kind kind, String host, String version, long daemonPid, Optional<Instant> daemonStarted, Optional<Duration> held,
        Optional<Duration> left, String name, String note, long session, long pid, long uid, String client, long fence) {
    /** The kind of a holder. */
    public enum Kind {
        /** A client of this host's daemon; or this host without a client, if the session is 0. */
        HERE,
        /** A daemon that has registered in the store, usually on another host. */
        DAEMON,
        /** A daemon without a registration, such as an older version. */
        UNREGISTERED,
        /** A program that locks in the store without locksidecar. */
        FOREIGN,
        /** A holder on another host, of which nothing else is known. */
        UNKNOWN
    }

    /** Characters that a terminal would obey, or would show in the wrong place. */
    private static final Pattern CONTROL = Pattern.compile("[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}\\p{Cs}]");
    /** The number of fields of a holder in a reply. */
    private static final int FIELDS = 14;

    /** Reads one of the holders in a reply to inspect. */
    static Holder read(ByteBuffer b) {
        int fields = Msgpack.getArray(b);
        Welcome.need(fields, FIELDS);
        long kind = Msgpack.getCount(b);
        String host = Msgpack.getText(b);
        String version = Msgpack.getText(b);
        long daemon = Msgpack.getCount(b);
        long started = Msgpack.getLong(b);
        Optional<Duration> held = millis(Msgpack.getLong(b));
        Optional<Duration> left = millis(Msgpack.getLong(b));
        String name = Msgpack.getText(b);
        String note = Msgpack.getText(b);
        Holder h = new Holder(
                kind(kind), host, version, daemon, started == 0 ? Optional.empty() : Optional.of(Instant.ofEpochMilli(started)),
                held, left, name, note, Msgpack.getCount(b), Msgpack.getCount(b), Msgpack.getLong(b), Msgpack.getText(b),
                Msgpack.getCount(b));
        Msgpack.skip(b, fields - FIELDS, 3);
        return h;
    }

    private static Kind kind(long number) {
        Kind[] all = Kind.values();
        return number < 1 || number >= all.length ? Kind.UNKNOWN : all[(int) number - 1];
    }

    static Optional<Duration> millis(long n) {
        return n < 0 ? Optional.empty() : Optional.of(Duration.ofMillis(n));
    }

    /**
     * Names the holder for people, such as {@code web-3} or {@code process 4711 (nightly)}. Control characters and line breaks
     * are replaced.
     */
    @Override
    public String toString() {
        String s = switch (kind) {
            case HERE -> here();
            case DAEMON -> host;
            case UNREGISTERED -> "an unregistered daemon";
            case FOREIGN -> "another program";
            case UNKNOWN -> "another host";
        };
        return CONTROL.matcher(note.isEmpty() ? s : s + " (" + note + ")").replaceAll("\ufffd");
    }

    private String here() {
        if (session == 0) {
            return "this host";
        }
        if (pid == 0) {
            return client.isEmpty() ? "session " + session : client;
        }
        return "process " + pid + (client.isEmpty() ? "" : " (" + client + ")");
    }
}
