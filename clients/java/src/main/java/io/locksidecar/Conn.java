package io.locksidecar;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;

/**
 * One session: its requests and its holds. It is never used again after its end.
 *
 * <p>The I/O thread of its {@link Link} reads, and applies each frame ({@link Incoming}). Callers add {@link Requests}
 * and write them ({@link Outbox}). The one lock, mu, guards everything unless a comment says otherwise. No code of the
 * user runs while it is held, and nothing waits while it is held.
 */
final class Conn {
    /** Nanoseconds between two checks for calls that were not answered in time. */
    private static final long LOOK = 500_000_000;

    final ReentrantLock mu = new ReentrantLock();
    /** The reason for the end of the connection. From then on nothing is held. */
    volatile LockException dead;
    /** System.nanoTime of its beginning. */
    final long since = System.nanoTime();

    /** The requests of callers. */
    final Requests requests;
    /** The releases of callers. */
    final Releases releases;
    private final Link link;
    private final Outbox out;
    /** Only the I/O thread uses it. */
    private final Welcome welcome = new Welcome();

    private final Holds holds;
    private final Incoming incoming;
    /** The calls in flight, by id. */
    final Map<Long, Call> pending = new HashMap<>();
    /** The withdrawn acquires whose result is not known, by hold. The next acquire of that hold waits for it. */
    final Map<Hold.Id, Integer> leaving = new HashMap<>();
    /** Tasks that wait until the I/O thread has read everything that has arrived. */
    private final List<Runnable> caughtUp = new ArrayList<>();
    /** The tasks that were added before the present reading, and when it began. */
    private List<Runnable> looking = new ArrayList<>();
    private long seen;
    /** Calls that have ended. They are handled after mu is released. */
    private List<Runnable> ended = new ArrayList<>();
    /** Losses to be reported. They follow the ended calls, so that no listener delays a caller. */
    private List<Runnable> told = new ArrayList<>();
    /** System.nanoTime of the next check for calls without an answer. */
    private long lookAt = since + LOOK;
    /** Something was read since the last sweep. Only the I/O thread uses it. */
    private boolean heard;
    /** System.nanoTime since which nothing was read while a call waits. Only the I/O thread uses it. */
    private long quietSince = since;
    /** System.nanoTime of a ping after which nothing was read; null without one. Only the I/O thread uses it. */
    private Long probedAt;

    Conn(Link link, SocketChannel channel, Runnable wakeup) {
        this.link = link;
        this.out = new Outbox(mu, channel, wakeup);
        this.holds = new Holds(link, r -> told.add(r));
        this.incoming = new Incoming(this, holds);
        this.requests = new Requests(this, out, holds);
        this.releases = new Releases(this, requests, out, holds);
    }

    Link link() {
        return link;
    }

    /** Sets the time until which an answer is expected. */
    void limit(Call c) {
        mu.lock();
        try {
            c.limit = System.nanoTime() + link.timeout();
        } finally {
            mu.unlock();
        }
    }

    Outbox out() {
        return out;
    }

    Welcome welcome() {
        return welcome;
    }

    /** Returns the owner's hold on this connection; null if there is none, or if it is known to be over. */
    Hold find(Hold.Id id) {
        mu.lock();
        try {
            return holds.get(id);
        } finally {
            mu.unlock();
        }
    }

    /** Returns a hold of the key that belongs to the current thread; null without one. */
    Hold inThread(String key) {
        mu.lock();
        try {
            return holds.inThread(key, Owner.ofThread());
        } finally {
            mu.unlock();
        }
    }

    /** Applies one payload, on the I/O thread. */
    void apply(ByteBuffer payload) {
        incoming.apply(payload);
    }

    /** Counts a withdrawn acquire, by 1, and by -1 when its result is known. mu is held. */
    void leaves(Call c, int by) {
        if (c.asker.keys().permits() > 0) {
            return; // another acquire of a permit is never granted this one
        }
        for (Hold hold : c.holds) {
            int count = leaving.getOrDefault(hold.id, 0) + by;
            if (count > 0) {
                leaving.put(hold.id, count);
            } else {
                leaving.remove(hold.id);
            }
        }
    }

    /** Sets the end of a call. mu is held. */
    void finish(Call c, Call.Answer answer) {
        c.answered(answer);
        ended.add(c::end);
    }

    /** Records that the I/O thread now reads everything that has arrived. */
    void look() {
        mu.lock();
        try {
            looking.addAll(caughtUp);
            caughtUp.clear();
            seen = BootClock.SYSTEM.now();
        } finally {
            mu.unlock();
        }
    }

    /**
     * Ends the holds whose stated validity is over, and the calls that were not answered in time; and runs the tasks
     * that waited for this moment. The I/O thread calls it when everything has been read that had arrived at the last
     * look.
     */
    void sweep() {
        List<Runnable> waiting;
        boolean hangs;
        mu.lock();
        try {
            waiting = looking;
            looking = new ArrayList<>();
            holds.lapse(seen).forEach(this::giveBack); // a statement may have arrived since
            long t = System.nanoTime();
            if (t - lookAt >= 0) {
                lookAt = t + LOOK;
                expire(t);
            }
            hangs = hangs(t);
        } finally {
            mu.unlock();
        }
        try {
            flush();
        } finally {
            Link.each(waiting, Runnable::run);
        }
        if (hangs) {
            die(link.silent(), "connection");
        }
    }

    /** Releases a hold that has run out, because the daemon would continue to renew it. mu is held. */
    private void giveBack(Hold hold) {
        for (int i = 0; i < hold.grants; i++) {
            requests.release(hold);
        }
    }

    /**
     * Ends a hold whose stated validity is over. The program is told so, and messages that were not read cannot change
     * it.
     */
    void lapse(Hold hold) {
        mu.lock();
        try {
            long now = BootClock.SYSTEM.now();
            if (hold.over || dead != null || now < hold.valid) {
                return;
            }
            holds.lose(hold, hold.reasonAt(now));
            giveBack(hold);
        } finally {
            mu.unlock();
        }
        flush();
    }

    /**
     * Tells whether the daemon hangs. It runs on the I/O thread when everything that has arrived was read; mu is held. If
     * a call waits and nothing was read for a third of the timeout, it sends a ping. Only the time after the ping counts,
     * because this process itself may have been paused before.
     */
    private boolean hangs(long t) {
        if (heard || pending.isEmpty()) {
            heard = false;
            quietSince = t;
            probedAt = null;
        } else if (probedAt == null && t - patientUntil() >= 0) {
            probedAt = t;
            requests.ping();
        }
        return probedAt != null && t - patientUntil() >= 0;
    }

    /** Returns the System.nanoTime until which there is nothing to do if nothing is read. */
    private long patientUntil() {
        long third = link.timeout() / 3;
        return probedAt == null ? quietSince + third : probedAt + link.timeout() - third;
    }

    /** Records, on the I/O thread, that something was read. */
    void heard() {
        heard = true;
    }

    private void expire(long t) {
        for (Call c : List.copyOf(pending.values())) {
            if (c.limit == null || t - c.limit <= 0 || c.abandoned) {
                continue;
            }
            if (c.asker != null) { // it has to be withdrawn
                ended.add(() -> c.asker.giveUp(link.silent()));
            } else {
                pending.remove(c.id);
                finish(c, new Call.Answer(-1, "", 0, link.silent()));
            }
        }
    }

    /** Returns for how many milliseconds the I/O thread may sleep: at least 1, and at most a second. */
    long patience() {
        mu.lock();
        try {
            if (!caughtUp.isEmpty() || !looking.isEmpty()) {
                return 1;
            }
            long soonest = holds.soonest();
            long left = soonest == Long.MAX_VALUE ? 1000 : (soonest - BootClock.SYSTEM.now()) / 1_000_000 + 1;
            long most = Math.min(1000, link.timeout() / 3_000_000);
            if (!pending.isEmpty()) {
                left = Math.min(left, (patientUntil() - System.nanoTime()) / 1_000_000 + 1);
            }
            return Math.max(1, Math.min(most, left));
        } finally {
            mu.unlock();
        }
    }

    /** Writes the added requests, and wakes waiting threads. mu is not held. */
    void flush() {
        List<Runnable> now = List.of();
        List<Runnable> then = List.of();
        mu.lock();
        try {
            if (!ended.isEmpty()) {
                now = ended;
                ended = new ArrayList<>();
                out.crowd(now.size());
            }
            if (!told.isEmpty()) {
                then = told;
                told = new ArrayList<>();
            }
        } finally {
            mu.unlock();
        }
        out.flush(false);
        try {
            Link.each(now, Runnable::run);
        } finally {
            Link.each(then, Runnable::run);
        }
    }

    /** Runs r as whenCaughtUp does. mu is held, and the caller wakes the I/O thread afterwards. */
    void whenCaughtUpLocked(Runnable r) {
        caughtUp.add(r);
    }

    /** Returns the number of requests that wait for their replies. */
    int inFlight() {
        mu.lock();
        try {
            return pending.size();
        } finally {
            mu.unlock();
        }
    }

    /** Returns the error of writing, or null. */
    IOException fault() {
        mu.lock();
        try {
            return out.failed();
        } finally {
            mu.unlock();
        }
    }

    /**
     * Waits for a short time until everything that has arrived was read, because it may extend holds. Does nothing on
     * the I/O thread.
     */
    void settle() {
        if (Thread.currentThread() instanceof IoThread) {
            return; // it runs a callback, because the program's executor does so
        }
        Wait.Flag read = new Wait.Flag();
        whenCaughtUp(read::set);
        read.awaitUninterruptibly(System.nanoTime() + LOOK);
    }

    /**
     * Runs r, which must not block, once everything that has arrived was read; at once if the connection has ended.
     */
    void whenCaughtUp(Runnable r) {
        boolean late;
        mu.lock();
        try {
            late = dead != null;
            if (!late) {
                caughtUp.add(r);
            }
        } finally {
            mu.unlock();
        }
        if (late) {
            r.run();
        } else {
            link.wakeup();
        }
    }

    /** Ends the connection: every call fails, every hold is lost. Idempotent; does not block. */
    void die(LockException why, String reason) {
        List<Runnable> waiting;
        mu.lock();
        try {
            if (dead != null) {
                return;
            }
            dead = why; // from here on nothing is owned, so that others may get the locks
            holds.loseAll(reason);
            for (Call c : pending.values()) {
                finish(c, new Call.Answer(-1, "", 0, gone()));
            }
            pending.clear();
            leaving.clear();
            looking.addAll(caughtUp);
            caughtUp.clear();
            waiting = looking;
            looking = new ArrayList<>();
        } finally {
            mu.unlock();
        }
        try {
            flush();
        } finally {
            Link.each(waiting, Runnable::run);
        }
    }

    /** Makes an error from the one that has ended the connection. */
    LockException gone() {
        LockException why = dead;
        if (why instanceof ProtocolException) {
            return new ProtocolException(why.getMessage(), why);
        }
        if (why instanceof UnavailableException && !(why instanceof ConnectionLostException)) {
            return new UnavailableException(why.getMessage(), why);
        }
        return new ConnectionLostException(why.getMessage(), why);
    }
}
