package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ReadableByteChannel;

/**
 * The reading half of a connection: it cuts the stream into messages, and applies them. Replies end calls, and grants and
 * pushes change conn.holds. Only the reader of the connection uses it.
 */
final class Incoming {
    private static final int SIZE = 1 << 14;
    /** The first four bytes of an HTTP reply. */
    private static final int HTTP = 0x48545450;
    private static final long MS = 1_000_000;
    /** Later than any useful time, and small enough for additions. */
    private static final long FAR = 4_000_000_000_000L;

    private final Conn conn;
    private final ReadableByteChannel channel;
    /** A time of this process's clock before hello was sent; never later than the true one. */
    private final long began = BootClock.SYSTEM.floor();
    /** The daemon has answered hello. */
    volatile boolean welcomed;
    /** The time of this process's clock, minus the time of the daemon's; at most the true difference. In nanoseconds. */
    private long shift;
    /** The maximum size of a frame, which the daemon states in the welcome. */
    int maxFrame = Codes.MAX_FRAME;
    private ByteBuffer in = ByteBuffer.allocateDirect(SIZE);

    Incoming(Conn conn, ReadableByteChannel channel) {
        this.conn = conn;
        this.channel = channel;
    }

    /** Reads once; returns how many bytes, and -1 at the end of the stream. */
    int read() throws IOException {
        return channel.read(in);
    }

    /** Applies all complete messages that were read; true if there may be more to read. mu of the connection is held. */
    boolean apply() {
        boolean full = !in.hasRemaining();
        in.flip();
        int end = in.limit();
        while (in.remaining() >= 4) {
            int size = in.getInt(in.position());
            if (size == HTTP) {
                throw bad(IoThread.SocketPath.http(conn.link.setup.path()));
            }
            if (size <= 0 || size > maxFrame) {
                throw bad("frame of " + Integer.toUnsignedString(size) + " bytes, the limit is " + maxFrame);
            }
            if (in.remaining() - 4 < size) {
                break;
            }
            int next = in.position() + 4 + size;
            in.position(next - size).limit(next);
            apply(in);
            in.limit(end).position(next);
        }
        if (in.position() == 0 && in.limit() == in.capacity()) { // a message may be larger than the buffer
            in = ByteBuffer.allocateDirect(2 * in.capacity()).put(in);
        } else {
            in.compact();
        }
        return full;
    }

    private static LockException bad(String why) {
        return new LockException(Code.BAD_FRAME, why);
    }

    /** Throws if a message, or a part of it, has fewer fields than that. */
    static void need(int fields, int count) {
        if (fields < count) {
            throw bad("message is too short");
        }
    }

    /**
     * Applies one payload: a reply or a push. Throws an exception if the payload is malformed. Checks the whole payload first,
     * because a caller must not see a grant whose message turns out to be malformed. mu of the connection is held.
     */
    void apply(ByteBuffer b) {
        int count = Msgpack.getArray(b);
        if (count < 2) {
            throw bad("message is not an array of code and id");
        }
        int begin = b.position();
        Msgpack.skip(b, count, 1);
        if (b.hasRemaining()) {
            throw bad("bytes behind the message");
        }
        b.position(begin);
        long code = Msgpack.getLong(b);
        if (code < 0 || code > 255) {
            throw bad("code is not a small number");
        }
        long id = Msgpack.getCount(b);
        if (id == 0) {
            push((int) code, b, count - 2);
        } else {
            reply((int) code, id, b, count - 2);
        }
    }

    private void reply(int code, long id, ByteBuffer b, int fields) {
        if (!welcomed && id == 1) {
            welcome(code, b, fields);
            return;
        }
        Call c = conn.pending.get(id);
        if (c == null) {
            return;
        }
        Answer answer = code == Codes.OK ? success(c, b, fields) : failure(c, code, b, fields);
        if (code == Codes.OK && c.asker != null) {
            LostException loss = passOn(c);
            answer = loss == null ? answer : Answer.failed(loss);
        }
        conn.pending.remove(c.id);
        conn.finish(c, answer);
        if (c.target != null) { // this is a cancel; if its target is still pending, it never reached the daemon
            conn.pending.remove(c.target.id);
            conn.countWithdrawn(c.target, -1);
        }
    }

    private Answer failure(Call c, int code, ByteBuffer b, int fields) {
        need(fields, 1);
        String text = Msgpack.getText(b);
        boolean places = c.op == Codes.ACQUIRE_MANY && fields > 1;
        if (code == Codes.NOT_HELD && c.hold != null && c.asker == null && !c.hold.over) {
            conn.holds.lose(c.hold, "gone");
        } else if (c.op == Codes.DOWNGRADE) {
            c.hold.shared = false;
        }
        return new Answer(code, text, places ? Msgpack.getCount(b) : -1, null);
    }

    private Answer success(Call c, ByteBuffer b, int fields) {
        switch (c.op) {
            case Codes.ACQUIRE, Codes.RENEW, Codes.DOWNGRADE -> {
                need(fields, 6);
                grant(c, 0, b, 0);
            }
            case Codes.ACQUIRE_ANY -> {
                need(fields, 7);
                anyGranted(c, b);
            }
            case Codes.ACQUIRE_MANY, Codes.RELEASE_MANY -> {
                need(fields, 1);
                entries(c, b);
            }
            case Codes.INSPECT -> c.inspection = Inspection.read(b, fields);
            default -> { // every other success that this client asks for begins with a number
                need(fields, 1);
                long number = Msgpack.getCount(b);
                return number == 0 ? Answer.OK : new Answer(Codes.OK, "", number, null);
            }
        }
        return Answer.OK;
    }

    /** Records the entries of a reply, one for each hold: grants, or the codes of releases. */
    private void entries(Call c, ByteBuffer b) {
        if (Msgpack.getArray(b) != c.holds.length) {
            throw bad("as many entries as keys were expected");
        }
        c.codes = new int[c.holds.length];
        for (int i = 0; i < c.holds.length; i++) {
            if (c.op == Codes.RELEASE_MANY) {
                c.codes[i] = (int) Math.min(Msgpack.getCount(b), Integer.MAX_VALUE);
            } else {
                int fields = Msgpack.getArray(b);
                need(fields, 6);
                grant(c, i, b, fields - 6L);
            }
        }
    }

    /** Records the grant of one of several keys, whose position follows the grant. */
    private void anyGranted(Call c, ByteBuffer b) {
        int begin = b.position();
        Msgpack.skip(b, 6, 1);
        long index = Msgpack.getCount(b);
        if (index >= c.holds.length) {
            throw bad("the position of a key is out of range");
        }
        b.position(begin);
        c.holds = new Hold[] {c.holds[(int) index]};
        grant(c, 0, b, 0);
    }

    /** Records the grant of the i-th hold of a call, and skips {@code more} further fields. */
    private void grant(Call c, int i, ByteBuffer b, long more) {
        long fence = Msgpack.getCount(b);
        Msgpack.getCount(b); // left, which is for display
        long deadline = Msgpack.getCount(b);
        Msgpack.getCount(b); // count, because the client counts re-entries itself
        long end = Msgpack.getCount(b);
        Msgpack.getCount(b); // flags
        Msgpack.skip(b, more, 3);
        Hold hold = c.holds[i];
        if (c.asker != null) {
            hold = granted(hold, fence);
            c.holds[i] = hold;
            hold.grants++;
        } else if (hold.over) {
            return;
        }
        if (end != 0) { // the end never moves to an earlier time, but replies may come in any order
            hold.end = Math.max(hold.end, ours(end));
        }
        hold.state(ours(deadline));
        conn.holds.stated(hold);
    }

    /** Returns the hold that a grant is about. A permit is always a new one. */
    private Hold granted(Hold asked, long fence) {
        if (asked.isPermit()) {
            asked.id = new Hold.Id(asked.id.key, asked.id.owner, fence);
            if (fence == 0 || conn.holds.table.get(asked.id) != null) { // two owners would believe that they have the same permit
                throw bad("a permit has no fence of its own");
            }
        }
        Hold same = conn.holds.table.get(asked.id);
        if (same != null && same.fence == fence) { // a re-entry, perhaps of an acquire on another thread
            return same;
        }
        if (same != null) { // another fence shows that the earlier hold was lost
            conn.holds.lose(same, "gone");
        }
        conn.holds.table.put(asked);
        asked.fence = fence;
        return asked;
    }

    /** Passes a grant to its acquire, or releases it. Returns an earlier loss that its owner has not released, or null. */
    private LostException passOn(Call c) {
        LostException loss = conn.link.unreleased(c.asker);
        c.taken = loss == null && c.asker.take(c.holds);
        for (Hold hold : c.holds) {
            if (c.taken) {
                hold.count(c.asker.terms.options().shared, 1);
            } else { // the acquire was given up meanwhile, or has an unreleased loss
                giveBack(hold);
            }
        }
        return loss;
    }

    /** Releases one grant that no acquire took. */
    private void giveBack(Hold hold) {
        hold.grants--;
        if (hold.writes + hold.reads == 0 && hold.grants == 0) {
            conn.holds.drop(hold);
        }
        conn.requests.release(hold, Codes.ASYNC | hold.unwanted());
    }

    private void push(int event, ByteBuffer b, int fields) {
        switch (event) {
            case Codes.KEEPALIVE -> {
                need(fields, 2);
                long until = ours(Msgpack.getCount(b));
                Msgpack.getCount(b); // left, which is for display
                conn.holds.state(until);
                conn.requests.ping(); // whatever the welcome said, because a reload may require a heartbeat later
            }
            case Codes.LOST -> {
                need(fields, 4);
                Hold.Id id = id(b);
                String reason = Codes.reason(Msgpack.getCount(b));
                Hold permit = conn.holds.table.get(id);
                Hold hold = permit != null ? permit : conn.holds.table.get(Hold.Id.lock(id.key, id.owner));
                if (hold != null && hold.fence == id.permit) { // a lock and a permit of one key never have the same fence
                    conn.holds.lose(hold, reason);
                } else {
                    lostInRelease(id, reason);
                }
            }
            case Codes.RELEASE_FAILED -> {
                need(fields, 5);
                Hold.Id id = id(b);
                boolean unconfirmed = Msgpack.getCount(b) == Codes.UNKNOWN;
                conn.holds.releaseFailed(id, unconfirmed, Msgpack.getText(b));
            }
            case Codes.FATAL -> {
                need(fields, 2);
                LockException why = LockException.reply(Msgpack.getCount(b), Msgpack.getText(b));
                throw welcomed ? new UnavailableException(Code.CLOSED, why.getMessage()) : why;
            }
            default -> { } // an event of a later version
        }
    }

    /** Reads the key, the owner and the fence of a hold. */
    private static Hold.Id id(ByteBuffer b) {
        return new Hold.Id(Msgpack.getText(b), Msgpack.getCount(b), Msgpack.getCount(b));
    }

    /** Records the loss of a hold whose release is in flight, to be thrown when not_held answers it. The id has the fence. */
    private void lostInRelease(Hold.Id id, String reason) {
        for (Call c : conn.pending.values()) {
            if (c.op != Codes.RELEASE && c.op != Codes.RELEASE_MANY) {
                continue;
            }
            for (Hold hold : c.holds) {
                if (hold.fence == id.permit && hold.id.owner == id.owner && hold.id.key.equals(id.key)) {
                    hold.lost = reason;
                }
            }
        }
    }

    /** Converts a time of the daemon's clock to this process's clock, in nanoseconds; never later than the true time. */
    long ours(long millis) {
        return Math.min(millis, FAR) * MS + shift;
    }

    /** Reads the fields of the reply to hello. */
    private void welcome(int code, ByteBuffer b, int fields) {
        if (code != Codes.OK) {
            need(fields, 1);
            throw LockException.reply(code, Msgpack.getText(b));
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
            throw new LockException(Code.BAD_VERSION, "the daemon speaks version " + version);
        }
        maxFrame = (int) Math.min(frame, 1 << 30);
        // The daemon read now after began, and rounded it down by less than 1 ms.
        shift = began - Math.min(now, FAR) * MS - MS;
        welcomed = true;
    }
}
