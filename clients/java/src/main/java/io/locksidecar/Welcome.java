package io.locksidecar;

import java.nio.ByteBuffer;

/** What the daemon said of itself at the beginning, and how its clock maps to ours. */
final class Welcome {
    private static final long MS = 1_000_000;
    /** Beyond any time that makes sense, and small enough to reckon with. */
    private static final long FAR = 4_000_000_000_000L;

    /** Our clock before hello was sent: never later than it was. */
    private final long began = BootClock.SYSTEM.floor();

    private volatile boolean done;
    private long shift;
    private int maxFrame = Codes.MAX_FRAME;

    boolean done() {
        return done;
    }

    int maxFrame() {
        return maxFrame;
    }

    /** Returns a time of the daemon's in nanoseconds of our clock: never later than it is. */
    long ours(long millis) {
        return Math.min(millis, FAR) * MS + shift;
    }

    /** Reads the fields of the reply to hello. */
    void read(int code, ByteBuffer b, int fields) {
        if (code != Codes.OK) {
            need(fields, 1);
            throw Codes.failure(code, Msgpack.getText(b));
        }
        need(fields, 10);
        long version = Msgpack.getCount(b);
        Msgpack.getCount(b); // session
        long now = Msgpack.getCount(b);
        long frame = Msgpack.getCount(b);
        for (int i = 0; i < 4; i++) {
            Msgpack.getCount(b); // min_ttl, default_ttl, max_ttl, watch
        }
        int namespaces = Msgpack.getArray(b);
        for (int i = 0; i < namespaces; i++) {
            int n = Msgpack.getArray(b);
            need(n, 3);
            Msgpack.skip(b, n, 3);
        }
        Msgpack.getText(b); // the daemon's version
        if (version != Codes.VERSION) {
            throw new ProtocolException("the daemon speaks version " + version);
        }
        maxFrame = (int) Math.min(frame, 1 << 30);
        // now was read after we began, and rounded down by less than 1 ms
        shift = began - Math.min(now, FAR) * MS - MS;
        done = true;
    }

    static void need(int fields, int count) {
        if (fields < count) {
            throw new ProtocolException("message is too short");
        }
    }
}
