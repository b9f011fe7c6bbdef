package io.locksidecar;

import java.nio.ByteBuffer;

/**
 * The requests of callers on a connection. Each changes the records of holds and waits, and adds its frame, in one step
 * under the connection's lock. So the records always agree with the requests. None of it blocks.
 */
final class Requests {
    /** The result of an acquire that waits until everything that has arrived was read. */
    private static final Object LATER = new Object();

    private final Conn conn;
    private final Outbox out;
    private final Holds holds;
    private long ids; // guarded by conn.mu

    Requests(Conn conn, Outbox out, Holds holds) {
        this.conn = conn;
        this.out = out;
        this.holds = holds;
    }

    /** Sends hello. The welcome handles its reply. */
    void hello(byte[] name, byte[] label) {
        conn.mu.lock();
        try {
            ByteBuffer b = out.begin(6);
            Msgpack.putLong(b, Codes.HELLO);
            Msgpack.putLong(b, ++ids);
            Msgpack.putLong(b, Codes.VERSION);
            Msgpack.putLong(b, Codes.VERSION);
            Msgpack.putText(b, name);
            Msgpack.putText(b, label);
            out.end();
        } finally {
            conn.mu.unlock();
        }
        out.flush(true);
    }

    /** Sends a request, [op, id, key, fields…], or [op, id] without a key. In any case, the end of c is reported. */
    void send(Call c, byte[] key, long... fields) {
        LockException why = null;
        conn.mu.lock();
        try {
            if (conn.dead != null) {
                why = conn.gone();
            } else if (out.full()) {
                why = full();
            } else {
                put(c, key, fields);
            }
        } finally {
            conn.mu.unlock();
        }
        if (why == null) {
            out.flush(true);
        } else {
            c.answered(new Call.Answer(-1, "", 0, why));
            c.end();
        }
    }

    private static LimitException full() {
        return new LimitException("too much is waiting to be written");
    }

    /** Gives a call its id; mu is held. */
    long begun(Call c) {
        c.id = ++ids;
        conn.pending.put(c.id, c);
        return c.id;
    }

    /** Adds a request; mu is held. */
    void put(Call c, byte[] key, long... fields) {
        frame(c.op, begun(c), key, null, fields);
    }

    /** Adds a release whose reply is ignored. mu is held. */
    void release(Hold hold) {
        frame(Codes.RELEASE, ++ids, hold.name, null, hold.id.owner(), hold.fence, Codes.ASYNC);
    }

    /** Adds the release of a hold that was unlocked by force, which opens the key to others; mu is held. */
    void acknowledge(Hold hold) {
        frame(Codes.RELEASE, ++ids, hold.name, null, hold.id.owner(), hold.fence, Codes.ALL);
    }

    /** Adds a ping whose reply is ignored, to be written with the next requests. mu is held. */
    void ping() {
        frame(Codes.PING, ++ids, null, null);
    }

    private void frame(int op, long id, byte[] key, byte[] trace, long... fields) {
        ByteBuffer b = out.begin(2 + given(key) + fields.length + given(trace));
        Msgpack.putLong(b, op);
        Msgpack.putLong(b, id);
        if (key != null) {
            Msgpack.putText(b, key);
        }
        put(b, fields, trace);
        out.end();
    }

    private static int given(byte[] text) {
        return text == null ? 0 : 1;
    }

    /** Writes the fields after the keys; trace is null in most requests. */
    private static void put(ByteBuffer b, long[] fields, byte[] trace) {
        for (long f : fields) {
            Msgpack.putLong(b, f);
        }
        if (trace != null) {
            Msgpack.putText(b, trace);
        }
    }

    // ---- acquires ----

    /**
     * Requests what a wants. Ends a at once if its owner has everything already. The end of a's call is passed to
     * {@link Acquire#answered}, on any thread.
     */
    void acquire(Acquire a) {
        Object outcome = null;
        conn.mu.lock();
        try {
            if (a.done()) {
                return; // it was given up before its request was sent
            }
            outcome = conn.dead != null ? conn.gone() : held(a);
            if (outcome == null) {
                outcome = out.full() ? full() : ask(a);
            }
        } finally {
            conn.mu.unlock();
        }
        if (outcome == null) {
            out.flush(true);
        } else if (outcome == LATER) {
            conn.link().wakeup();
        } else if (outcome instanceof Hold[]) {
            a.tell();
        } else if (conn.dead != null && outcome instanceof LockException e) {
            a.refused(e, conn);
        } else {
            a.finish(outcome);
        }
    }

    /** Gives a what its owner holds, if that is everything; returns null if the daemon has to be asked. mu is held. */
    private Object held(Acquire a) {
        if (a.keys().permits() > 0) {
            return null; // each acquire takes one more
        }
        Hold.Id[] wanted = a.ids();
        LostException loss = conn.link().unreleased(a);
        if (loss != null) {
            return loss;
        }
        Hold[] found = new Hold[wanted.length];
        Hold[] inTheWay = null;
        boolean all = true;
        for (int i = 0; i < wanted.length; i++) {
            Hold hold = holds.get(wanted[i]);
            Hold other = a.site() != null ? holds.inTheWay(wanted[i], a.site()) : null;
            if (conn.leaving.containsKey(wanted[i]) || hold != null && !hold.owned() || other != null && !other.owned()) {
                conn.whenCaughtUpLocked(() -> a.connected(conn)); // what has arrived decides
                return LATER;
            }
            if (other != null && a.waits()) { // a try is answered by the daemon
                if (!other.shared || !a.shared()) {
                    return Site.alreadyHeld(other);
                }
                inTheWay = inTheWay == null ? new Hold[wanted.length] : inTheWay;
                inTheWay[i] = other; // the key can be acquired unless a writer waits
            }
            if (hold != null && hold.shared && !a.shared()) {
                return new UpgradeException("lock \"" + hold.id.key()
                        + "\" is held shared by this owner; an exclusive hold could never be granted");
            }
            found[i] = hold;
            all &= hold != null;
        }
        a.inTheWay(inTheWay);
        if (!all) {
            return null; // the daemon re-enters those that are held: it can tell whether all are, at one moment
        }
        if (a.take(found)) {
            for (Hold hold : found) {
                hold.enter(a.shared());
            }
        }
        return found;
    }

    /** Returns the site of a's holds if they belong to its thread; else null. */
    private static Site siteOf(Acquire a) {
        Site site = a.site();
        return site == null || site.named() ? null : site;
    }

    /** Adds a's request; mu is held. */
    private Object ask(Acquire a) {
        Key[] keys = a.keys().all();
        Hold[] wanted = new Hold[keys.length];
        for (int i = 0; i < keys.length; i++) {
            boolean fixed = (a.flags() & Codes.FIXED) != 0;
            wanted[i] = new Hold(conn, a.ids()[i], keys[i].utf8(), a.shared(), fixed, a.keeper(), siteOf(a));
        }
        Call c = new Call(wanted, a);
        int permits = a.keys().permits();
        int mode = permits > 0 ? Codes.PERMIT : a.shared() ? Codes.SHARED : Codes.EXCLUSIVE;
        if (a.keys().many()) {
            if (!putMany(c, keys, a.trace(), a.owner(), mode, a.left(), a.ttl(), a.flags())) {
                return new InvalidException(a.keys() + " do not fit into one request");
            }
        } else if (permits > 0 || a.trace() != null) {
            frame(c.op, begun(c), keys[0].utf8(), a.trace(), a.owner(), mode, a.left(), a.ttl(), a.flags(), permits);
        } else {
            put(c, keys[0].utf8(), a.owner(), mode, a.left(), a.ttl(), a.flags());
        }
        a.asked(c);
        if (a.done()) { // it ended before it knew of the call; no other request of this owner may come in between
            cancel(c);
        }
        return null;
    }

    private boolean putMany(Call c, Key[] keys, byte[] trace, long... fields) {
        ByteBuffer b = out.begin(3 + fields.length + given(trace), keys.length * (Codes.MAX_KEY + 3));
        Msgpack.putLong(b, c.op);
        Msgpack.putLong(b, ids + 1);
        Msgpack.putArray(b, keys.length);
        for (Key key : keys) {
            Msgpack.putText(b, key.utf8());
        }
        put(b, fields, trace);
        if (out.length() > conn.welcome().maxFrame()) {
            out.takeBack();
            return false;
        }
        out.end();
        begun(c);
        return true;
    }

    /** Withdraws the acquire of c, if it is not answered. If its grant crosses this, the grant is released. */
    void withdraw(Call c) {
        conn.mu.lock();
        try {
            cancel(c);
        } finally {
            conn.mu.unlock();
        }
        out.flush(true);
    }

    private void cancel(Call c) {
        if (conn.dead != null || c.abandoned || conn.pending.get(c.id) != c) {
            return;
        }
        c.abandoned = true;
        conn.leaves(c, 1);
        Call cancel = new Call(Codes.CANCEL, null, c, x -> { });
        ByteBuffer b = out.begin(4);
        Msgpack.putLong(b, Codes.CANCEL);
        Msgpack.putLong(b, begun(cancel));
        Msgpack.putLong(b, c.id);
        Msgpack.putText(b, c.hold.name);
        out.end();
    }
}
