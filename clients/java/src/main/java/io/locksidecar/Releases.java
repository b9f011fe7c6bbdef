package io.locksidecar;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/** The releases of callers on a connection. As with {@link Requests}, none of them blocks. */
final class Releases {
    /** Maximum number of bytes of a release-many besides its entries, and of an entry besides its key. */
    private static final int FRAME = 32;
    private static final int ENTRY = 13;

    private final Conn conn;
    private final Requests requests;
    private final Outbox out;
    private final Holds holds;

    Releases(Conn conn, Requests requests, Outbox out, Holds holds) {
        this.conn = conn;
        this.requests = requests;
        this.out = out;
        this.holds = holds;
    }

    /** The end of a release for which no request was sent. */
    enum Left { STILL_HELD, NOT_OWNED, LOST }

    /**
     * Releases one acquire of a hold. Returns the call whose reply is the result, or a downgrade that this has become;
     * or a {@link Left}.
     */
    Object release(Hold hold, boolean shared, Consumer<Call> then) {
        Object left;
        conn.mu.lock();
        try {
            left = leave(hold, shared);
            if (left == null) {
                Call c = new Call(Codes.RELEASE, hold, null, then);
                requests.put(c, hold.name, hold.id.owner(), hold.fence, 0);
                left = c;
            } else if (left == Left.STILL_HELD) {
                left = lower(hold, then);
            }
        } finally {
            conn.mu.unlock();
        }
        out.flush(true);
        return left;
    }

    /**
     * Releases one acquire of each of several holds of one owner. Returns the calls whose replies are the results:
     * usually one, a release-many. Holds that were lost before have none.
     */
    List<Call> release(Hold[] all, boolean shared, Consumer<Call> then) {
        List<Call> calls = new ArrayList<>();
        List<Hold> last = new ArrayList<>();
        conn.mu.lock();
        try {
            for (Hold hold : all) {
                Object left = leave(hold, shared);
                if (left == null) {
                    last.add(hold);
                } else if (left == Left.STILL_HELD && lower(hold, then) instanceof Call c) {
                    calls.add(c);
                }
            }
            for (int n = 0; n < last.size(); ) { // each takes more bytes than its key did in the acquire
                int begin = n;
                int room = conn.welcome().maxFrame() - FRAME;
                while (n < last.size() && (room -= last.get(n).name.length + ENTRY) >= 0) {
                    n++;
                }
                calls.add(releaseMany(last.subList(begin, Math.max(n, begin + 1)), then));
                n = Math.max(n, begin + 1);
            }
        } finally {
            conn.mu.unlock();
        }
        out.flush(true);
        return calls;
    }

    private Call releaseMany(List<Hold> some, Consumer<Call> then) {
        Call c = new Call(some.toArray(Hold[]::new), then);
        ByteBuffer b = out.begin(5, some.size() * (Codes.MAX_KEY + ENTRY));
        Msgpack.putLong(b, Codes.RELEASE_MANY);
        Msgpack.putLong(b, requests.begun(c));
        Msgpack.putArray(b, some.size());
        for (Hold hold : some) {
            Msgpack.putArray(b, 2);
            Msgpack.putText(b, hold.name);
            Msgpack.putLong(b, hold.fence);
        }
        Msgpack.putLong(b, c.hold.id.owner());
        Msgpack.putLong(b, 0);
        out.end();
        return c;
    }

    /** Subtracts one acquire from a hold; null if it was the last one, and the hold has to be released. mu is held. */
    private Left leave(Hold hold, boolean shared) {
        if ((shared ? hold.reads : hold.writes) == 0) {
            return Left.NOT_OWNED;
        }
        if (shared) {
            hold.reads--;
        } else {
            hold.writes--;
        }
        boolean last = hold.writes + hold.reads == 0;
        if (hold.over) {
            if (last) {
                conn.link().forget(hold);
                if ("forced".equals(hold.lost) && conn.dead == null) {
                    requests.acknowledge(hold); // until then, the daemon keeps the key closed to others
                }
            }
            return Left.LOST;
        }
        if (!last) {
            return Left.STILL_HELD;
        }
        holds.drop(hold);
        for (int i = 1; i < hold.grants; i++) { // for acquires of one owner that the daemon has counted
            requests.release(hold);
        }
        return null;
    }

    /** Turns one exclusive acquire of a hold into a shared one. The result is as for release. */
    Object downgrade(Hold hold, Consumer<Call> then) {
        Object left;
        conn.mu.lock();
        try {
            if (hold.over) {
                return hold.lost != null ? Left.LOST : Left.NOT_OWNED;
            }
            if (hold.writes > 0) {
                hold.writes--;
                hold.reads++;
            }
            left = lower(hold, then);
        } finally {
            conn.mu.unlock();
        }
        out.flush(true);
        return left;
    }

    /** Requests a downgrade if an exclusive hold has only readers left. mu is held. */
    private Object lower(Hold hold, Consumer<Call> then) {
        if (hold.writes > 0 || hold.shared) {
            return Left.STILL_HELD;
        }
        hold.shared = true;
        Call c = new Call(Codes.DOWNGRADE, hold, null, then);
        requests.put(c, hold.name, hold.id.owner(), hold.fence);
        return c;
    }
}
