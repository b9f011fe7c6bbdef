package io.locksidecar;

import java.nio.ByteBuffer;

/** The daemon's statements in the welcome, and the mapping of its clock to this process's. */
final class Welcome {
    private static final long MS = 1_000_000;
    /** Later than any useful time, and small enough for additions. */
    private static final long FAR = 4_000_000_000_000L;

    /** The time of this process's clock before hello was sent; never later than the true one. */
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

    /** Returns a time of the daemon's in nanoseconds of this process's clock; never later than the true one. */
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
        // The daemon read now after began, and rounded it down by less than 1 ms.
        shift = began - Math.min(now, FAR) * MS - MS;
        done = true;
    }

    static void need(int fields, int count) {
        if (fields < count) {
            throw new ProtocolException("message is too short");
        }
    }
}
