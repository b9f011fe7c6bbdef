package io.locksidecar;

import io.locksidecar.Holds.Site;
import io.locksidecar.LockException.Code;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * The requests of callers on a connection. Each request changes the records of holds and waits, and adds its frame, in one step
 * under the connection's lock. So the records always agree with the requests. No method blocks.
 */
final class Requests {
    /** The result of a release that waits for no answer. */
    enum ReleaseResult { STILL_HELD, NOT_OWNED, LOST, SENT }

    /** The result of an acquire that waits until everything that has arrived was read. */
    private static final Object LATER = new Object();
    /** Maximum number of bytes of a release-many apart from its entries, and of an entry apart from its key. */
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

    /** Sends a request, [op, id, key, fields…], or [op, id] without a key. If it cannot be sent, c ends with an error. */
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

    /** Writes the added requests. With {@code async} no thread is about to wait for the answer, so another one has to read it. */
    private void sent(boolean async) {
        conn.out.flush(true);
        if (async) {
            conn.ensureReader();
        }
    }

    private static LockException full() {
        return new LockException(Code.LIMIT, "too much is waiting to be written");
    }

    /** Gives a call its id. mu is held. If no thread waits for the answer, the call itself has a time limit. */
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
     * Sends the request of an acquire. Ends the acquire at once if its owner holds all of its keys already. Otherwise {@link
     * Acquire#answered} gets the answer, on any thread.
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

    /** Gives an acquire the holds of its owner, if they suffice; returns null if the daemon has to be asked. mu is held. */
    private Object held(Acquire a) {
        Keys keys = a.terms.keys();
        if (keys.permits > 0) {
            return null; // each acquire takes one more permit
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
            if (conn.withdrawn.containsKey(wanted[i]) || hold != null && !hold.owned() || other != null && !other.owned()) {
                conn.caughtUp.add(() -> { // a message that has arrived may decide
                    a.connected(conn);
                    conn.ensureReader(); // the acquire's thread may be parked, so another one has to read
                });
                return LATER;
            }
            if (other != null && a.terms.waiting() != 0) { // a try does not wait: the daemon answers it
                blocked++;
                if ((!other.shared || !a.terms.options().shared) && (!any || blocked == wanted.length)) {
                    return Site.alreadyHeld(other);
                }
                inTheWay = inTheWay == null ? new Hold[wanted.length] : inTheWay;
                inTheWay[i] = other; // both are shared, so the key can be acquired unless a writer waits
            }
            if (hold != null && hold.shared && !a.terms.options().shared && !any) {
                return new NotAcquiredException(Code.UPGRADE, "lock \"" + hold.id.key
                        + "\" is held shared by this owner; an exclusive hold could never be granted");
            }
            all &= hold != null;
        }
        a.inTheWay = any && blocked < wanted.length ? null : inTheWay; // another key is not blocked
        if (any || !all) {
            return null; // only the daemon knows all keys at one moment: it chooses one, or re-enters the held ones
        }
        Hold[] found = Stream.of(wanted).map(conn.holds.table::get).toArray(Hold[]::new);
        if (a.take(found)) {
            for (Hold hold : found) {
                hold.count(a.terms.options().shared, 1);
            }
        }
        return found;
    }

    /** Adds the request of an acquire. Returns null, or the error for which there is no request. mu is held. */
    private Object ask(Acquire a) {
        Keys keys = a.terms.keys();
        LockOptions options = a.terms.options();
        byte[] trace = a.terms.trace();
        Hold[] wanted = new Hold[keys.text.length];
        for (int i = 0; i < wanted.length; i++) {
            wanted[i] = new Hold(conn, a, i);
        }
        Call c = new Call(keys.op, a, null, wanted);
        // The optional fields are permits, traceparent and keep, in this order. Several keys can only have the traceparent.
        int optional = options.keep != 0 ? 3 : trace != null ? 2 : keys.permits > 0 ? 1 : 0;
        int fields = keys.several() && trace != null ? ACQUIRE + 1 : ACQUIRE + optional;
        ByteBuffer b = conn.out.begin(c.op, ids + 1, fields, keys.text.length * (Codes.MAX_KEY + 3));
        if (keys.several()) {
            Msgpack.putArray(b, keys.text.length);
        }
        for (byte[] key : keys.utf8) {
            Msgpack.putText(b, key);
        }
        int mode = keys.permits > 0 ? Codes.PERMIT : a.terms.options().shared ? Codes.SHARED : Codes.EXCLUSIVE;
        put(b, a.terms.owner(), mode, a.left(), options.ttl, options.flags());
        if (optional > 0 && !keys.several()) {
            Msgpack.putLong(b, keys.permits);
        }
        if (optional > 1) {
            Msgpack.putText(b, trace == null ? new byte[0] : trace);
        }
        if (optional > 2) {
            Msgpack.putLong(b, options.keep);
        }
        if (keys.several() && conn.out.length() > conn.incoming.maxFrame) {
            conn.out.takeBack();
            return new LockException(Code.INVALID, keys + " do not fit into one request");
        }
        conn.out.end();
        begun(c);
        a.asked(c);
        if (a.done()) { // it was given up before it knew of the call, so giveUp could not cancel the call
            cancel(c);
        }
        return null;
    }

    /** Withdraws the acquire of c, unless it is answered. A grant that crosses the withdrawal is released when it arrives. */
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
        conn.countWithdrawn(c, 1);
        Call cancel = new Call(Codes.CANCEL, null, x -> { });
        cancel.target = c;
        ByteBuffer b = conn.out.begin(Codes.CANCEL, begun(cancel), 2, 0);
        Msgpack.putLong(b, c.id);
        Msgpack.putText(b, c.hold.name);
        conn.out.end();
    }

    // ---- releases ----

    /**
     * Releases one acquire of a hold, with these flags. Returns the call whose reply is the result, or a {@link ReleaseResult}.
     * The call is a downgrade if the release ends the last exclusive acquire and shared ones remain.
     */
    Object release(Hold hold, boolean shared, int flags, Consumer<Call> then) {
        Object left;
        conn.mu.lock();
        try (conn.mu) {
            left = countRelease(hold, shared);
            if (left == null && flags == Codes.QUIET) {
                release(hold, flags);
                conn.holds.releasedQuietly(hold);
                left = ReleaseResult.SENT;
            } else if (left == null) {
                left = about(hold, Codes.RELEASE, then, hold.id.owner, hold.fence, flags);
                ((Call) left).frees = flags == Codes.NOW && hold.keep != 0;
            } else if (left == ReleaseResult.STILL_HELD) {
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
                Object left = countRelease(hold, shared);
                if (left == null) {
                    last.add(hold);
                } else if (left == ReleaseResult.STILL_HELD && lower(hold, then) instanceof Call c) {
                    calls.add(c);
                }
            }
            for (int n = 0; n < last.size(); ) { // several requests, because an entry is larger than a key of the acquire
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

    /** Subtracts one acquire from a hold; null if it was the last one, so that the hold has to be released. mu is held. */
    private ReleaseResult countRelease(Hold hold, boolean shared) {
        if ((shared ? hold.reads : hold.writes) == 0) {
            return ReleaseResult.NOT_OWNED;
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
            return ReleaseResult.LOST;
        }
        if (!last) {
            return ReleaseResult.STILL_HELD;
        }
        conn.holds.drop(hold);
        for (int i = 1; i < hold.grants; i++) { // the daemon has counted each grant, and the caller releases only one
            release(hold, Codes.ASYNC);
        }
        return null;
    }

    /**
     * Turns one exclusive acquire of a hold into a shared one. With {@code again} it was turned before, and this only repeats
     * the request if the daemon has refused it. The result is as for release. Throws if the hold is over.
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
            return ReleaseResult.STILL_HELD;
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
