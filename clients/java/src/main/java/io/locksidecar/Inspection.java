package io.locksidecar;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.regex.Pattern;

/**
 * The state of a lock or a semaphore when the daemon was asked. It may have changed since.
 *
 * @param held whether the lock, or a permit of the semaphore, is held on any host, according to the store
 * @param here whether clients of this host's daemon hold it
 * @param shared whether it is held shared
 * @param holdersHere how many clients hold it on this host
 * @param waitersHere how many clients wait for it on this host
 * @param left the time until the present lease ends unless it is renewed; empty if not known, or free
 * @param fence the newest fence on this host; 0 if it is not held here
 * @param holders the holders on any host that the daemon can name, at most 64. A daemon of an older version names none
 */
public record Inspection(
        boolean held, boolean here, boolean shared, long holdersHere, long waitersHere, Optional<Duration> left, long fence,
        List<Holder> holders) {
    /** The number of fields of a reply that are read. Older daemons send one less. */
    static final int FIELDS = 7;
    /** The value of held if a client of this daemon holds it. */
    private static final int HERE = 1;

    /** Reads the reply to an inspect. */
    static Inspection read(ByteBuffer b, int fields) {
        Incoming.need(fields, FIELDS - 1);
        long held = Msgpack.getCount(b);
        long mode = Msgpack.getCount(b);
        long holdersHere = Msgpack.getCount(b);
        long waitersHere = Msgpack.getCount(b);
        Optional<Duration> left = millis(Msgpack.getLong(b));
        long fence = Msgpack.getCount(b);
        List<Holder> holders = new ArrayList<>();
        for (int n = fields < FIELDS ? 0 : Msgpack.getArray(b); n > 0; n--) {
            holders.add(Holder.read(b));
        }
        return new Inspection(
                held != 0, held == HERE, held != 0 && mode == Codes.SHARED, holdersHere, waitersHere, left, fence,
                List.copyOf(holders));
    }

    private static Optional<Duration> millis(long n) {
        return n < 0 ? Optional.empty() : Optional.of(Duration.ofMillis(n));
    }

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
     * @param session the session of a client of this host's daemon; 0 for other holders, and for a lock that is
     *     {@linkplain LockOptions#keep kept}
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
        private static final int HOLDER = 14;

        /** Reads one of the holders in a reply to inspect. */
        static Holder read(ByteBuffer b) {
            int fields = Msgpack.getArray(b);
            Incoming.need(fields, HOLDER);
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
            Msgpack.skip(b, fields - HOLDER, 3);
            return h;
        }

        private static Kind kind(long number) {
            Kind[] all = Kind.values();
            return number < 1 || number >= all.length ? Kind.UNKNOWN : all[(int) number - 1];
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
            return session == 0 ? fence == 0 ? "this host" : "a kept lock of user " + uid
                    : pid == 0 ? client.isEmpty() ? "session " + session : client
                    : "process " + pid + (client.isEmpty() ? "" : " (" + client + ")");
        }
    }
}
