package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.io.IOException;
import java.nio.channels.SelectionKey;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

/**
 * One session: its requests and its holds. It is never used again after its end.
 *
 * <p>At any time, at most one thread is its reader: it waits for the socket, and applies what has arrived ({@link
 * Incoming}). A caller that waits for a reply becomes the reader if there is none ({@link #lead}), so that it needs no other
 * thread to wake it. Otherwise the I/O thread of the {@link Link} reads. It takes over at once while requests without a
 * reader are in flight, and else when no caller has read for a while: losses and keepalives come without a request.
 *
 * <p>Callers add {@link Requests} and write them ({@link Outbox}). The one lock, mu, guards everything unless a comment says
 * otherwise. No code of the user runs while it is held, and nothing waits while it is held.
 */
final class Conn {
    /** Nanoseconds between two checks for calls that were not answered in time. */
    private static final long CHECK = 500_000_000;
    /** Maximum number of reads before the rest of the reader's work. */
    private static final int READS = 16;
    /** How long the I/O thread sleeps while a caller reads. If the caller reads for longer, it sleeps until that ends. */
    private static final long TICK = 50_000_000;
    /** How long the I/O thread leaves the connection without a reader. It reads if no caller has begun to read by then. */
    private static final long SHORT = 10_000_000;
    private static final long SECOND = 1_000_000_000;

    final Mutex mu = new Mutex();
    /** The reason for the end of the connection. From then on nothing is held. */
    volatile LockException dead;
    /** System.nanoTime of its beginning. */
    final long since = System.nanoTime();
    final Requests requests;
    final Link link;
    private final SelectionKey key;
    private final IoThread io;
    final Outbox out;
    final Holds holds;
    final Incoming incoming;
    /** The calls in flight, by id. */
    final Map<Long, Call> pending = new HashMap<>();
    /** The number of withdrawn acquires whose results are not known, by hold. The next acquire of that hold waits for them. */
    final Map<Hold.Id, Integer> withdrawn = new HashMap<>();
    /** Tasks that run once everything has been read that had arrived when they were added. */
    final List<Runnable> caughtUp = new ArrayList<>();
    /** The tasks from caughtUp that were added before the present reading began. */
    private final List<Runnable> catchingUp = new ArrayList<>();
    /** Calls that have ended. They are handled after mu is released. */
    private List<Call> ended = new ArrayList<>();
    /**
     * Tasks to run after mu is released: they give up acquires, report losses, or have waited for a reading. They run after the
     * ended calls are handled, so that no listener delays a caller.
     */
    private List<Runnable> deferred = new ArrayList<>();
    /** System.nanoTime of the next check for calls without an answer. */
    private long nextCheck = since + CHECK;

    /** The thread that reads; null if there is none. Written under mu. */
    private volatile Thread reader;
    /** A caller has read since the I/O thread last checked. */
    private boolean led;
    /** The I/O thread sleeps until the caller that reads is done. */
    private boolean asleep;
    /** The present turn has ended a call whose caller may read the next reply itself. */
    private boolean answered;

    // Only the reader uses these.
    /** Something was read since the last sweep. */
    private boolean heard;
    /** System.nanoTime since which nothing was read while a call waits. */
    private long quietSince = since;
    /** System.nanoTime of a ping after which nothing was read; null without one. */
    private Long probedAt;
    /** System.nanoTime until which the reader waits for the reason of a failed write; null without one. */
    private Long reasonUntil;

    Conn(Link link, SocketChannel channel, SelectionKey key, IoThread io) {
        this.link = link;
        this.key = key;
        this.io = io;
        this.reader = io;
        this.out = new Outbox(this, channel);
        this.holds = new Holds(link, r -> deferred.add(r));
        this.incoming = new Incoming(this, channel);
        this.requests = new Requests(this);
    }

    /** Returns the owner's hold on this connection; null if there is none, or if it is known to be over. */
    Hold find(Hold.Id id) {
        mu.lock();
        try (mu) {
            return holds.table.get(id);
        }
    }

    /** Returns a hold of the key that belongs to the current thread; null without one. */
    Hold inThread(String name) {
        mu.lock();
        try (mu) {
            return holds.table.inThread(name, Owner.ofThread()).stream().findFirst().orElse(null);
        }
    }

    /** Adds {@code by} to the count of withdrawn acquires: 1 at the withdrawal, and -1 when the result is known. mu is held. */
    void countWithdrawn(Call c, int by) {
        if (c.asker.terms.keys().permits > 0) {
            return; // another acquire of a permit is never granted this one
        }
        for (Hold.Id id : c.asker.ids) {
            withdrawn.merge(id, by, (count, more) -> count + more > 0 ? (Integer) (count + more) : null);
        }
    }

    /** Ends a call with an answer. mu is held. */
    void finish(Call c, Answer answer) {
        c.answered(answer);
        ended.add(c);
        answered |= c.readerWaits();
    }

    // ---- the reader ----

    /**
     * Lets the calling thread read until w is done, the limit is reached (System.nanoTime, or null), it is interrupted, or
     * the connection has ended. Returns false at once if another thread reads, or if this one is virtual. A selector is
     * interruptible without harm to its channels, unlike a read that blocks.
     */
    boolean lead(Wait w, Long limit) {
        Thread me = Thread.currentThread();
        if (!w.mayRead) {
            ensureReader();
            return false;
        }
        mu.lock();
        try (mu) {
            if (reader != null || dead != null) {
                return false;
            }
            reader = me;
            led = true;
        }
        w.reads = this;
        try {
            while (!w.done() && dead == null && !me.isInterrupted()) {
                long left = limit == null ? SECOND : limit - System.nanoTime();
                if (left <= 0) {
                    break;
                }
                turn(left);
            }
        } finally {
            w.reads = null;
            stopReading();
        }
        return true;
    }

    /** Ends the reading of a caller. */
    private void stopReading() {
        boolean needed;
        mu.lock();
        try (mu) {
            reader = null;
            led = true;
            needed = asleep || dead != null || due();
            asleep = false;
        }
        if (needed) {
            io.poke();
        }
    }

    /** Tells whether there must be a reader now. mu is held. */
    private boolean due() {
        return !pending.isEmpty() || !caughtUp.isEmpty() || !catchingUp.isEmpty() || out.needsReader();
    }

    /** Makes the I/O thread read if no thread reads. It is for answers for which no thread waits that may read itself. */
    void ensureReader() {
        if (reader == null) {
            io.poke();
        }
    }

    /** Wakes the thread that reads, or else the I/O thread, to check for work. */
    void wakeReader() {
        Thread t = reader;
        if (t == null) {
            io.poke();
        } else if (t != Thread.currentThread()) {
            key.selector().wakeup();
        }
    }

    /** Tells whether the current thread is a caller that reads: it must not run code of the user. */
    boolean isLeader() {
        return reader == Thread.currentThread() && reader != io;
    }

    /** Makes the I/O thread the reader if it has to read, and returns 0; else returns for how many nanoseconds it sleeps. */
    long take() {
        mu.lock();
        try (mu) {
            if (reader == null && (due() || !led)) {
                reader = io;
            }
            if (reader == io) {
                return 0;
            }
            asleep = reader != null && !led; // a caller has been reading for a whole tick
            led = false;
            return asleep ? SECOND : reader != null ? TICK : SHORT;
        }
    }

    /** Waits, on the I/O thread, until no caller reads the connection any more, which has ended. */
    void awaitReader() {
        while (reader != null && reader != io) {
            key.selector().wakeup();
            LockSupport.parkNanos(SHORT);
        }
    }

    /**
     * Does the reader's work once: waits for the socket, for at most {@code max} nanoseconds, reads all messages that have
     * arrived, and ends calls and holds whose time is over. It never throws: a failure ends the connection.
     */
    void turn(long max) {
        try {
            boolean writing;
            long rest;
            mu.lock();
            try (mu) {
                writing = out.resume();
                rest = patience();
            }
            int ops = writing ? SelectionKey.OP_READ | SelectionKey.OP_WRITE : SelectionKey.OP_READ;
            if (key.interestOps() != ops) {
                key.interestOps(ops);
            }
            key.selector().select(ready -> { }, Math.min(rest, max / 1_000_000 + 1));
            read();
        } catch (LockException e) {
            die(link.placed(e), "connection");
        } catch (IOException e) {
            die(new UnavailableException(Code.CLOSED,
                    "the connection to the daemon at " + link.setup.path() + " failed: " + e.getMessage(), e), "connection");
        } catch (RuntimeException | Error e) {
            Link.LOG.log(System.Logger.Level.ERROR, "locksidecar cannot read its connection", e);
            die(new UnavailableException(Code.CLOSED, "the client failed: " + e, e), "connection");
        }
    }

    /** Reads the messages that have arrived. Once all are read, ends calls and holds whose time is over, and runs waiting tasks. */
    private void read() throws IOException {
        long seen = BootClock.SYSTEM.now();
        boolean more = true;
        boolean hangs = false;
        for (int i = 0; i < READS && more && dead == null; i++) {
            int n = incoming.read();
            heard |= n > 0;
            mu.lock();
            try (mu) {
                if (i == 0) {
                    move(caughtUp, catchingUp);
                }
                if (n < 0) {
                    throw new UnavailableException(Code.CLOSED, "the daemon closed the connection");
                }
                more = incoming.apply();
                if (!more) {
                    hangs = sweep(seen);
                    move(catchingUp, deferred);
                }
                throwFault(out.failed);
            }
            flush(!more);
        }
        if (hangs) {
            die(link.silent(), "connection");
        }
    }

    private static void move(List<Runnable> from, List<Runnable> to) {
        if (!from.isEmpty()) {
            to.addAll(from);
            from.clear();
        }
    }

    /** Throws the error of a failed write, but first leaves the daemon a second to send the reason. */
    private void throwFault(IOException fault) throws IOException {
        if (fault != null) {
            reasonUntil = reasonUntil == null ? System.nanoTime() + SECOND : reasonUntil;
            if (System.nanoTime() - reasonUntil >= 0) {
                throw fault;
            }
        }
    }

    /**
     * Ends the holds whose stated validity was over at {@code seen}, and the calls that were not answered in time. Everything
     * that had arrived at {@code seen} was read. Returns whether the daemon hangs. mu is held.
     */
    private boolean sweep(long seen) {
        if (seen >= holds.soonest) { // not the present time, because a keepalive may have arrived since
            holds.lapse(seen).forEach(this::giveBack);
        }
        long t = System.nanoTime();
        if (t - nextCheck >= 0) {
            nextCheck = t + CHECK;
            expire(t);
        }
        return hangs(t);
    }

    /** Releases a hold that has run out, because the daemon would continue to renew it. mu is held. */
    private void giveBack(Hold hold) {
        for (int i = 0; i < hold.grants; i++) {
            requests.release(hold, Codes.ASYNC);
        }
    }

    /**
     * Ends a hold whose stated validity is over. The caller tells the program so, and a message that is read later must not
     * change that.
     */
    void lapse(Hold hold) {
        mu.lock();
        try (mu) {
            long now = BootClock.SYSTEM.now();
            if (hold.over || dead != null || now < hold.valid) {
                return;
            }
            holds.lose(hold, hold.reasonAt(now));
            giveBack(hold);
        }
        flush(false);
    }

    /**
     * Tells whether the daemon hangs. Everything that has arrived was read; mu is held. If a call waits and nothing was read for
     * a third of the timeout, this sends a ping. Only the time after the ping counts, because this process itself may have been
     * paused before.
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

    /** Returns the System.nanoTime at which a silent daemon gets a ping, or after the ping counts as hanging. */
    private long patientUntil() {
        long third = link.setup.timeout() / 3;
        return probedAt == null ? quietSince + third : probedAt + link.setup.timeout() - third;
    }

    /** Ends the calls that were not answered in time. mu is held. */
    private void expire(long t) {
        for (Call c : List.copyOf(pending.values())) {
            boolean late = c.limit != null && t - c.limit > 0 && !c.abandoned;
            if (late && c.asker != null) { // the request has to be withdrawn
                deferred.add(() -> c.asker.giveUp(link.silent()));
            } else if (late) {
                pending.remove(c.id);
                finish(c, Answer.failed(link.silent()));
            }
        }
    }

    /** Returns for how many milliseconds the reader may wait: at least 1, and at most a second. mu is held. */
    private long patience() {
        if (!caughtUp.isEmpty() || !catchingUp.isEmpty()) {
            return 1;
        }
        long soonest = holds.soonest;
        long left = soonest == Long.MAX_VALUE ? 1000 : (soonest - BootClock.SYSTEM.now()) / 1_000_000 + 1;
        long max = Math.min(1000, link.setup.timeout() / 3_000_000);
        if (!pending.isEmpty()) {
            left = Math.min(left, (patientUntil() - System.nanoTime()) / 1_000_000 + 1);
        }
        return Math.max(1, Math.min(max, left));
    }

    /**
     * Writes the added requests, wakes waiting threads, and runs deferred tasks. {@code last} means that the calling thread is
     * the reader and will not read again in its present turn. mu is not held.
     */
    private void flush(boolean last) {
        List<Call> now = List.of();
        List<Runnable> then = List.of();
        boolean write;
        mu.lock();
        try (mu) {
            if (!ended.isEmpty()) {
                now = ended;
                ended = new ArrayList<>(1);
                out.woken = now.size();
            }
            if (!deferred.isEmpty()) {
                then = deferred;
                deferred = new ArrayList<>();
            }
            if (last) {
                if (answered && reader == io && dead == null && !due()) {
                    reader = null; // the caller reads its next reply itself
                    led = true;
                }
                answered = false;
            }
            write = !out.isEmpty();
        }
        if (write) {
            out.flush(false);
        }
        try {
            Link.each(now, Call::end);
        } finally {
            Link.each(then, Runnable::run);
        }
    }

    // ---- for callers ----

    /**
     * Waits for a short time until everything that has arrived was read, because it may extend holds. Does nothing on
     * the thread that reads.
     */
    void settle() {
        if (Thread.currentThread() == reader || Thread.currentThread() == io) {
            return; // the program's executor runs a callback on this thread
        }
        Wait.Value<Boolean> read = new Wait.Value<>(this);
        whenCaughtUp(() -> read.set(true));
        read.awaitUninterruptibly(System.nanoTime() + CHECK);
    }

    /**
     * Runs {@code r}, which must not block, once everything that has arrived was read; at once if the connection has ended.
     */
    void whenCaughtUp(Runnable r) {
        boolean late;
        mu.lock();
        try (mu) {
            late = dead != null;
            if (!late) {
                caughtUp.add(r);
            }
        }
        if (late) {
            r.run();
        } else {
            wakeReader();
        }
    }

    /** Ends the connection: every call fails, and every hold is lost. Idempotent. Does not block. */
    void die(LockException why, String reason) {
        mu.lock();
        try (mu) {
            if (dead != null) {
                return;
            }
            dead = why; // from here on no hold counts as owned: others may get the locks
            holds.loseAll(reason);
            for (Call c : pending.values()) {
                finish(c, Answer.failed(gone()));
            }
            pending.clear();
            withdrawn.clear();
            move(catchingUp, deferred);
            move(caughtUp, deferred);
        }
        wakeReader();
        io.poke();
        flush(false);
    }

    /** Makes an error from the one that has ended the connection. */
    LockException gone() {
        LockException why = dead;
        boolean same = why.code() == Code.UNAVAILABLE || why.isProtocol();
        return LockException.of(same ? why.code() : Code.CLOSED, why.getMessage(), why);
    }
}
