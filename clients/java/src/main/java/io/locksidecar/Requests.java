package io.locksidecar;

import io.locksidecar.Holds.Site;
import io.locksidecar.LockException.Code;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * The requests of callers on a connection. Each changes the records of holds and waits, and adds its frame, in one step
 * under the connection's lock. So the records always agree with the requests. None of it blocks.
 */
final class Requests {
    /** The end of a release for which no request was sent, or whose answer does not come. */
    enum Left { STILL_HELD, NOT_OWNED, LOST, SENT }

    /** The result of an acquire that waits until everything that has arrived was read. */
    private static final Object LATER = new Object();
    /** Maximum number of bytes of a release-many besides its entries, and of an entry besides its key. */
    private static final int FRAME = 32;
    private static final int ENTRY = 13;
    /** The number of fields of an acquire without optional ones. */
    private static final int ACQUIRE = 6;

    private final Conn conn;
    private long ids; // guarded by conn.mu

    Requests(Conn conn) {
        this.conn = conn;
    }

    /** Sends hello. The welcome handles its reply. */
    void hello(byte[] name, byte[] label) {
        conn.mu.lock();
        try (conn.mu) {
            ByteBuffer b = conn.out.begin(Codes.HELLO, ++ids, 4, 0);
            put(b, Codes.VERSION, Codes.VERSION);
            Msgpack.putText(b, name);
            Msgpack.putText(b, label);
            conn.out.end();
        }
        conn.out.flush(true);
    }

    /** Sends a request, [op, id, key, fields…], or [op, id] without a key. In any case, the end of c is reported. */
    void send(Call c, byte[] key, long... fields) {
        LockException why;
        conn.mu.lock();
        try (conn.mu) {
            why = conn.dead != null ? conn.gone() : conn.out.full() ? full() : null;
            if (why == null) {
                frame(c.op, begun(c), key, fields);
            }
        }
        if (why == null) {
            sent(c.then != null);
        } else {
            c.answered(Answer.failed(why));
            c.end();
        }
    }

    /** Writes what was added. If no thread is about to wait for the answer, another one has to read it. */
    private void sent(boolean async) {
        conn.out.flush(true);
        if (async) {
            conn.attend();
        }
    }

    private static LockException full() {
        return new LockException(Code.LIMIT, "too much is waiting to be written");
    }

    /** Gives a call its id; mu is held. If no thread waits for the answer, it is expected within the timeout. */
    private long begun(Call c) {
        c.id = ++ids;
        c.limit = c.then == null || c.target != null ? null : (Long) (System.nanoTime() + conn.link.setup.timeout());
        c.conn = conn;
        conn.pending.put(c.id, c);
        return c.id;
    }

    /** Adds a release whose reply is ignored. mu is held. */
    void release(Hold hold, int flags) {
        frame(Codes.RELEASE, flags == Codes.QUIET ? Codes.QUIET_ID : ++ids, hold.name, hold.id.owner, hold.fence, flags);
    }

    /** Adds a ping whose reply is ignored, to be written with the next requests. mu is held. */
    void ping() {
        frame(Codes.PING, ++ids, null);
    }

    private void frame(int op, long id, byte[] key, long... fields) {
        ByteBuffer b = conn.out.begin(op, id, (key == null ? 0 : 1) + fields.length, 0);
        if (key != null) {
            Msgpack.putText(b, key);
        }
        put(b, fields);
        conn.out.end();
    }

    private static void put(ByteBuffer b, long... fields) {
        for (long f : fields) {
            Msgpack.putLong(b, f);
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
        try (conn.mu) {
            if (a.done()) {
                return; // it was given up before its request was sent
            }
            outcome = conn.dead != null ? conn.gone() : held(a);
            if (outcome == null) {
                outcome = conn.out.full() ? full() : ask(a);
            }
        }
        if (outcome == null) {
            sent(a.then != null);
        } else if (outcome == LATER) {
            conn.wakeReader();
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
        Keys keys = a.terms.keys();
        if (keys.permits > 0) {
            return null; // each acquire takes one more
        }
        Hold.Id[] wanted = a.ids;
        Site site = a.terms.site();
        boolean any = keys.op == Codes.ACQUIRE_ANY;
        LostException loss = conn.link.unreleased(a);
        if (loss != null) {
            return loss;
        }
        Hold[] inTheWay = null;
        int blocked = 0;
        boolean all = true;
        for (int i = 0; i < wanted.length; i++) {
            Hold hold = conn.holds.table.get(wanted[i]);
            Hold other = site != null ? conn.holds.inTheWay(wanted[i], site) : null;
            if (conn.leaving.containsKey(wanted[i]) || hold != null && !hold.owned() || other != null && !other.owned()) {
                conn.caughtUp.add(() -> { // what has arrived decides
                    a.connected(conn);
                    conn.attend(); // this thread may not be the reader, and the acquire's thread may wait for a wake
                });
                return LATER;
            }
            if (other != null && a.terms.waiting() != 0) { // a try is answered by the daemon
                blocked++;
                if ((!other.shared || !a.terms.options().shared) && (!any || blocked == wanted.length)) {
                    return Site.alreadyHeld(other);
                }
                inTheWay = inTheWay == null ? new Hold[wanted.length] : inTheWay;
                inTheWay[i] = other; // the key can be acquired unless a writer waits
            }
            if (hold != null && hold.shared && !a.terms.options().shared && !any) {
                return new NotAcquiredException(Code.UPGRADE, "lock \"" + hold.id.key
                        + "\" is held shared by this owner; an exclusive hold could never be granted");
            }
            all &= hold != null;
        }
        a.inTheWay = any && blocked < wanted.length ? null : inTheWay; // it would not wait for itself alone
        if (any || !all) {
            return null; // the daemon chooses the key, or re-enters those that are held: it knows all of one moment
        }
        Hold[] found = Stream.of(wanted).map(conn.holds.table::get).toArray(Hold[]::new);
        if (a.take(found)) {
            for (Hold hold : found) {
                hold.count(a.terms.options().shared, 1);
            }
        }
        return found;
    }

    /** Adds a's request; mu is held. */
    private Object ask(Acquire a) {
        Keys keys = a.terms.keys();
        LockOptions options = a.terms.options();
        byte[] trace = a.terms.trace();
        Hold[] wanted = new Hold[keys.text.length];
        for (int i = 0; i < wanted.length; i++) {
            wanted[i] = new Hold(conn, a, i);
        }
        Call c = new Call(keys.op, a, null, wanted);
        int optional = options.keep != 0 ? 3 : trace != null ? 2 : keys.permits > 0 ? 1 : 0; // permits, traceparent, keep
        int fields = keys.many() && trace != null ? ACQUIRE + 1 : ACQUIRE + optional; // several keys have only the second
        ByteBuffer b = conn.out.begin(c.op, ids + 1, fields, keys.text.length * (Codes.MAX_KEY + 3));
        if (keys.many()) {
            Msgpack.putArray(b, keys.text.length);
        }
        for (byte[] key : keys.utf8) {
            Msgpack.putText(b, key);
        }
        int mode = keys.permits > 0 ? Codes.PERMIT : a.terms.options().shared ? Codes.SHARED : Codes.EXCLUSIVE;
        put(b, a.terms.owner(), mode, a.left(), options.ttl, options.flags());
        if (optional > 0 && !keys.many()) {
            Msgpack.putLong(b, keys.permits);
        }
        if (optional > 1) {
            Msgpack.putText(b, trace == null ? new byte[0] : trace);
        }
        if (optional > 2) {
            Msgpack.putLong(b, options.keep);
        }
        if (keys.many() && conn.out.length() > conn.incoming.maxFrame) {
            conn.out.takeBack();
            return new LockException(Code.INVALID, keys + " do not fit into one request");
        }
        conn.out.end();
        begun(c);
        a.asked(c);
        if (a.done()) { // it ended before it knew of the call; no other request of this owner may come in between
            cancel(c);
        }
        return null;
    }

    /** Withdraws the acquire of c, if it is not answered. If its grant crosses this, the grant is released. */
    void withdraw(Call c) {
        conn.mu.lock();
        try (conn.mu) {
            cancel(c);
        }
        sent(true);
    }

    private void cancel(Call c) {
        if (conn.dead != null || c.abandoned || conn.pending.get(c.id) != c) {
            return;
        }
        c.abandoned = true;
        conn.leaves(c, 1);
        Call cancel = new Call(Codes.CANCEL, null, x -> { });
        cancel.target = c;
        ByteBuffer b = conn.out.begin(Codes.CANCEL, begun(cancel), 2, 0);
        Msgpack.putLong(b, c.id);
        Msgpack.putText(b, c.hold.name);
        conn.out.end();
    }

    // ---- releases ----

    /**
     * Releases one acquire of a hold, with these flags. Returns the call whose reply is the result, or a downgrade that this
     * has become; or a {@link Left}.
     */
    Object release(Hold hold, boolean shared, int flags, Consumer<Call> then) {
        Object left;
        conn.mu.lock();
        try (conn.mu) {
            left = leave(hold, shared);
            if (left == null && flags == Codes.QUIET) {
                release(hold, flags);
                conn.holds.releasedQuietly(hold);
                left = Left.SENT;
            } else if (left == null) {
                left = about(hold, Codes.RELEASE, then, hold.id.owner, hold.fence, flags);
                ((Call) left).frees = flags == Codes.NOW && hold.keep != 0;
            } else if (left == Left.STILL_HELD) {
                left = lower(hold, then);
            }
        }
        sent(then != null);
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
        try (conn.mu) {
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
                int room = conn.incoming.maxFrame - FRAME;
                while (n < last.size() && (room -= last.get(n).name.length + ENTRY) >= 0) {
                    n++;
                }
                n = Math.max(n, begin + 1);
                calls.add(releaseMany(last.subList(begin, n), then));
            }
        }
        sent(then != null);
        return calls;
    }

    private Call releaseMany(List<Hold> some, Consumer<Call> then) {
        Call c = new Call(Codes.RELEASE_MANY, null, then, some.toArray(Hold[]::new));
        ByteBuffer b = conn.out.begin(Codes.RELEASE_MANY, begun(c), 3, some.size() * (Codes.MAX_KEY + ENTRY));
        Msgpack.putArray(b, some.size());
        for (Hold hold : some) {
            Msgpack.putArray(b, 2);
            Msgpack.putText(b, hold.name);
            Msgpack.putLong(b, hold.fence);
        }
        put(b, c.hold.id.owner, 0);
        conn.out.end();
        return c;
    }

    /** Subtracts one acquire from a hold; null if it was the last one, and the hold has to be released. mu is held. */
    private Left leave(Hold hold, boolean shared) {
        if ((shared ? hold.reads : hold.writes) == 0) {
            return Left.NOT_OWNED;
        }
        hold.count(shared, -1);
        boolean last = hold.writes + hold.reads == 0;
        if (hold.over) {
            if (last) {
                conn.link.losses.remove(hold);
                if ("forced".equals(hold.lost) && conn.dead == null) {
                    release(hold, Codes.ALL); // until then, the daemon keeps the key closed to others
                }
            }
            return Left.LOST;
        }
        if (!last) {
            return Left.STILL_HELD;
        }
        conn.holds.drop(hold);
        for (int i = 1; i < hold.grants; i++) { // for acquires of one owner that the daemon has counted
            release(hold, Codes.ASYNC);
        }
        return null;
    }

    /**
     * Turns one exclusive acquire of a hold into a shared one, or asks again if it is one and the daemon has refused. The
     * result is as for release. Throws if it is over.
     */
    Object downgrade(Hold hold, boolean again) {
        Object left;
        conn.mu.lock();
        try (conn.mu) {
            if (hold.over) {
                throw hold.notHeld();
            }
            if (!again && hold.writes > 0) {
                hold.writes--;
                hold.reads++;
            }
            left = lower(hold, null);
        }
        sent(false);
        return left;
    }

    /** Requests a downgrade if an exclusive hold has only readers left. mu is held. */
    private Object lower(Hold hold, Consumer<Call> then) {
        if (hold.writes > 0 || hold.shared) {
            return Left.STILL_HELD;
        }
        hold.shared = true;
        return about(hold, Codes.DOWNGRADE, then, hold.id.owner, hold.fence);
    }

    /** Adds a request about a hold. mu is held. */
    private Call about(Hold hold, int op, Consumer<Call> then, long... fields) {
        Call c = new Call(op, null, then, hold);
        frame(op, begun(c), hold.name, fields);
        return c;
    }
}
