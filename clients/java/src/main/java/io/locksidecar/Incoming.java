package io.locksidecar;

import java.nio.ByteBuffer;

/** Applies what the daemon sends to a connection: replies end calls, and grants and pushes change holds. */
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
        } else { // every other success that this client asks for begins with a number
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

    /** Records one entry per hold: a grant, or the code of a release. */
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

    /** Records the grant of a call's hold. */
    private void grant(Call c, int i, ByteBuffer b) {
        long fence = Msgpack.getCount(b);
        Msgpack.getCount(b); // left, which is for display
        long deadline = Msgpack.getCount(b);
        Msgpack.getCount(b); // count, because the client counts re-entries itself
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
            // the end never moves to an earlier time, but replies may come in any order
            hold.end = Math.max(hold.end, conn.welcome().ours(end));
        }
        hold.state(conn.welcome().ours(deadline));
        holds.stated(hold);
    }

    /** Returns the hold that a grant of a lock is about. */
    private Hold lock(Hold asked, long fence) {
        Hold same = holds.get(asked.id);
        if (same != null && same.fence == fence) { // its owner had it already, or got it on another thread
            return same;
        }
        if (same != null) { // it was lost, otherwise there would be no other fence
            holds.lose(same, "gone");
        }
        holds.put(asked);
        asked.fence = fence;
        return asked;
    }

    /** Returns the hold of a granted permit, which is always a new one. */
    private Hold permit(Hold asked, long fence) {
        Hold hold = asked.permit(fence);
        if (fence == 0 || holds.get(hold.id) != null) { // otherwise two owners would believe that they have it
            throw new ProtocolException("a permit has no fence of its own");
        }
        holds.put(hold);
        return hold;
    }

    /** Gives a grant to its acquire, or releases it. Returns the loss that was not released. */
    private LostException taken(Call c) {
        LostException loss = conn.link().unreleased(c.asker);
        c.taken = loss == null && c.asker.take(c.holds);
        for (Hold hold : c.holds) {
            if (c.taken) {
                hold.enter(c.asker.shared());
            } else { // it was given up meanwhile
                giveBack(hold);
            }
        }
        return loss;
    }

    /** Releases one grant that no acquire took. */
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
                Msgpack.getCount(b); // left, which is for display
                holds.state(until);
                conn.requests.ping(); // whatever the welcome said, because a reload may require a heartbeat later
            }
            case Codes.LOST -> {
                Welcome.need(fields, 4);
                String key = Msgpack.getText(b);
                long owner = Msgpack.getCount(b);
                long fence = Msgpack.getCount(b);
                String reason = Codes.reason(Msgpack.getCount(b));
                Hold permit = holds.get(new Hold.Id(key, owner, fence));
                Hold hold = permit != null ? permit : holds.get(Hold.Id.lock(key, owner));
                if (hold != null && hold.fence == fence) { // a lock and a permit of one key never have the same fence
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
