package io.locksidecar;

import java.nio.ByteBuffer;

/** What the daemon says, applied to a connection: replies end calls, grants and pushes change holds. */
final class Incoming {
    private final Conn conn;
    private final Holds holds;

    Incoming(Conn conn, Holds holds) {
        this.conn = conn;
        this.holds = holds;
    }

    /**
     * Applies one payload: a reply or a push. Throws a ProtocolException for one that cannot be used. The whole payload
     * is checked first: a caller must not see a grant whose message turns out to be malformed.
     */
    void apply(ByteBuffer b) {
        int count = Msgpack.getArray(b);
        if (count < 2) {
            throw new ProtocolException("message is not an array of code and id");
        }
        int begin = b.position();
        Msgpack.skip(b, count, 1);
        if (b.hasRemaining()) {
            throw new ProtocolException("bytes behind the message");
        }
        b.position(begin);
        long code = Msgpack.getLong(b);
        if (code < 0 || code > 255) {
            throw new ProtocolException("code is not a small number");
        }
        long id = Msgpack.getCount(b);
        int fields = count - 2;
        conn.mu.lock();
        try {
            if (id == 0) {
                push((int) code, b, fields);
            } else {
                reply((int) code, id, b, fields);
            }
        } finally {
            conn.mu.unlock();
        }
    }

    private void reply(int code, long id, ByteBuffer b, int fields) {
        if (!conn.welcome().done() && id == 1) {
            conn.welcome().read(code, b, fields);
            return;
        }
        Call c = conn.pending.get(id);
        if (c == null) {
            return;
        }
        Call.Answer answer;
        if (code != Codes.OK) {
            Welcome.need(fields, 1);
            String text = Msgpack.getText(b);
            boolean places = c.op == Codes.ACQUIRE_MANY && fields > 1;
            answer = new Call.Answer(code, text, places ? Msgpack.getCount(b) : -1, null);
            if (code == Codes.NOT_HELD && c.hold != null && c.asker == null && !c.hold.over) {
                holds.lose(c.hold, "gone");
            }
        } else if (c.op == Codes.ACQUIRE || c.op == Codes.RENEW || c.op == Codes.DOWNGRADE) {
            Welcome.need(fields, 6);
            grant(c, 0, b);
            answer = new Call.Answer(code, "", 0, null);
        } else if (c.op == Codes.ACQUIRE_MANY || c.op == Codes.RELEASE_MANY) {
            Welcome.need(fields, 1);
            many(c, b);
            answer = new Call.Answer(code, "", 0, null);
        } else if (c.op == Codes.INSPECT) {
            c.inspection = Inspection.read(b, fields);
            answer = new Call.Answer(code, "", 0, null);
        } else { // every other success that we ask for begins with a number
            Welcome.need(fields, 1);
            answer = new Call.Answer(code, "", Msgpack.getCount(b), null);
        }
        if (code == Codes.OK && c.asker != null) {
            LostException loss = taken(c);
            answer = loss == null ? answer : new Call.Answer(-1, "", 0, loss);
        }
        conn.pending.remove(id);
        conn.finish(c, answer);
        if (c.target != null) { // a cancel: its target was answered before, or never arrived
            conn.pending.remove(c.target.id);
            conn.leaves(c.target, -1);
        }
    }

    /** Takes in an entry a hold: a grant, or the code of a release. */
    private void many(Call c, ByteBuffer b) {
        if (Msgpack.getArray(b) != c.holds.length) {
            throw new ProtocolException("as many entries as keys were expected");
        }
        c.codes = new int[c.holds.length];
        for (int i = 0; i < c.holds.length; i++) {
            if (c.op == Codes.RELEASE_MANY) {
                c.codes[i] = (int) Math.min(Msgpack.getCount(b), Integer.MAX_VALUE);
                continue;
            }
            int fields = Msgpack.getArray(b);
            Welcome.need(fields, 6);
            grant(c, i, b);
            Msgpack.skip(b, fields - 6L, 3);
        }
    }

    /** Takes in the grant of a call's hold. */
    private void grant(Call c, int i, ByteBuffer b) {
        long fence = Msgpack.getCount(b);
        Msgpack.getCount(b); // left: for showing
        long deadline = Msgpack.getCount(b);
        Msgpack.getCount(b); // count: re-entry is counted here
        long end = Msgpack.getCount(b);
        Msgpack.getCount(b); // flags
        Hold hold = c.holds[i];
        if (c.asker != null) {
            hold = hold.isPermit() ? permit(hold, fence) : lock(hold, fence);
            c.holds[i] = hold;
            hold.grants++;
        } else if (hold.over) {
            return;
        }
        if (end != 0) {
            hold.end = Math.max(hold.end, conn.welcome().ours(end)); // it never moves to earlier, but replies do
        }
        hold.state(conn.welcome().ours(deadline));
        holds.stated(hold);
    }

    /** Returns the hold that a grant of a lock is of. */
    private Hold lock(Hold asked, long fence) {
        Hold same = holds.get(asked.id);
        if (same != null && same.fence == fence) { // its owner had it already, or got it on another thread
            return same;
        }
        if (same != null) { // it was lost, or there would be no other fence
            holds.lose(same, "gone");
        }
        holds.put(asked);
        asked.fence = fence;
        return asked;
    }

    /** Returns the hold that a grant of a permit is of, always a new one. */
    private Hold permit(Hold asked, long fence) {
        Hold hold = asked.permit(fence);
        if (fence == 0 || holds.get(hold.id) != null) { // two would believe in one
            throw new ProtocolException("a permit has no fence of its own");
        }
        holds.put(hold);
        return hold;
    }

    /** Gives what was granted to who asked for it, or back; returns the loss that was not released. */
    private LostException taken(Call c) {
        LostException loss = conn.link().unreleased(c.asker);
        c.taken = loss == null && c.asker.take(c.holds);
        for (Hold hold : c.holds) {
            if (c.taken) {
                hold.enter(c.asker.shared());
            } else { // given up meanwhile
                giveBack(hold);
            }
        }
        return loss;
    }

    /** Releases one grant that nobody took. */
    private void giveBack(Hold hold) {
        hold.grants--;
        if (hold.writes + hold.reads == 0 && hold.grants == 0) {
            holds.drop(hold);
        }
        conn.requests.release(hold);
    }

    private void push(int event, ByteBuffer b, int fields) {
        switch (event) {
            case Codes.KEEPALIVE -> {
                Welcome.need(fields, 2);
                long until = conn.welcome().ours(Msgpack.getCount(b));
                Msgpack.getCount(b); // left: for showing
                holds.state(until);
                conn.requests.ping(); // whatever the welcome said: a reload may require a heartbeat later
            }
            case Codes.LOST -> {
                Welcome.need(fields, 4);
                String key = Msgpack.getText(b);
                long owner = Msgpack.getCount(b);
                long fence = Msgpack.getCount(b);
                String reason = Codes.reason(Msgpack.getCount(b));
                Hold permit = holds.get(new Hold.Id(key, owner, fence));
                Hold hold = permit != null ? permit : holds.get(Hold.Id.lock(key, owner));
                if (hold != null && hold.fence == fence) { // never that of a lock and of a permit of one key
                    holds.lose(hold, reason);
                }
            }
            case Codes.FATAL -> {
                Welcome.need(fields, 2);
                LockException why = Codes.failure(Msgpack.getCount(b), Msgpack.getText(b));
                if (!conn.welcome().done()) {
                    throw why;
                }
                throw new ConnectionLostException(why.getMessage());
            }
            default -> { } // an event of a later version
        }
    }
}
