package io.locksidecar;

import io.locksidecar.LockException.Code;
import io.locksidecar.Wait.Call;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.PriorityQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * The client's way to the daemon: the present connection, the callers that wait for one, timers, and executors of callbacks.
 *
 * <p>The {@link IoThread} makes the connection when a caller needs it, and makes it again after its end. That thread runs
 * while there is a connection, or a caller that waits for one, or a timer.
 *
 * <p>Locks are taken in the order Conn.mu, then Link.mu; nothing waits under either.
 */
final class Link {
    /** A caller that waits for a connection. None of its methods may block. */
    interface Dial {
        /** Returns the System.nanoTime until which attempts continue. */
        long until();

        /** Takes the connection. */
        void connected(Conn conn);

        /** Learns that no connection can be made. */
        void failed(LockException why);
    }

    /** The settings of a client; times are in nanoseconds. The executor and the listener may be null. */
    record Setup(
            Path path, String name, String label, long timeout, long patience, boolean confirm, Executor executor,
            Consumer<LostException> onLost, Supplier<String> traceparent) {}

    /** Length of a traceparent, in characters. */
    private static final int TRACE = 55;
    /** Milliseconds until a callback for which there was no thread is tried again. */
    private static final long RETRY = 100;

    /** A task for later, or for when the client is closed before. */
    record Timer(long at, Runnable then, Runnable closed) {}

    private static final System.Logger LOG = System.getLogger("io.locksidecar");
    final Setup setup;
    private final Holds.Losses losses = new Holds.Losses();
    /** The client's own executors, for loss listeners and other callbacks. They also run what the program's refuses. */
    private final Callbacks listeners = new Callbacks("locksidecar-loss", Callbacks.THREADS, Callbacks.PAUSE);
    private final Callbacks callbacks = new Callbacks("locksidecar-callback", Callbacks.THREADS, Callbacks.PAUSE);
    private final ReentrantLock mu = new ReentrantLock();
    private final PriorityQueue<Timer> timers = new PriorityQueue<>(Comparator.comparingLong(Timer::at)); // mu
    private List<Dial> dials = new ArrayList<>(); // mu
    private boolean fresh; // mu: a caller has asked since the last attempt, and need not wait for the next pause
    private IoThread io; // mu; null when none runs
    /** Makes the thread; tests replace it. */
    volatile Function<Link, IoThread> threads = IoThread::new;
    private volatile Conn conn; // the last one made
    private volatile boolean closed;

    Link(Setup setup) {
        this.setup = setup;
    }

    long patience() {
        return setup.patience;
    }

    long timeout() {
        return setup.timeout;
    }

    /** Returns the traceparent of the caller, for an acquire; null if there is none. */
    byte[] trace() {
        String trace = setup.traceparent.get();
        return trace == null || trace.length() != TRACE ? null : trace.getBytes(StandardCharsets.US_ASCII);
    }

    Path path() {
        return setup.path;
    }

    boolean closed() {
        return closed;
    }

    // ---- for callers ----

    /** Returns the connection, or null without one. */
    Conn live() {
        Conn c = conn;
        return c != null && c.dead == null ? c : null;
    }

    /** Gives d the connection, at once if there is one. */
    void dial(Dial d) {
        Conn c = live();
        LockException none = null;
        if (c == null) {
            mu.lock();
            try {
                c = live();
                if (c == null && !closed) {
                    dials.add(d);
                    fresh = true;
                    none = run();
                    if (none == null) {
                        return;
                    }
                    dials.remove(d);
                }
            } finally {
                mu.unlock();
            }
        }
        if (none != null) {
            d.failed(none);
        } else if (closed) {
            d.failed(closing());
        } else {
            d.connected(c);
        }
    }

    /** Waits for the connection. One attempt is made to connect. */
    Conn connection() {
        Dialled d = new Dialled();
        dial(d);
        d.awaitUninterruptibly(null);
        if (d.conn == null) {
            d.why.fillInStackTrace();
            throw d.why;
        }
        return d.conn;
    }

    private static final class Dialled extends Wait implements Dial {
        private final long until = System.nanoTime();
        private volatile Conn conn;
        private volatile LockException why;

        @Override
        boolean done() {
            return conn != null || why != null;
        }

        @Override
        public long until() {
            return until;
        }

        @Override
        public void connected(Conn c) {
            conn = c;
            wake();
        }

        @Override
        public void failed(LockException e) {
            why = e;
            wake();
        }
    }

    /** Sends a request that changes nothing and waits for its success. Throws a failure. */
    Call ask(int op, byte[] key, long... fields) {
        Call c = asked(op, key, fields);
        if (c.done() && c.failedWith(Code.CLOSED) && !closed) {
            c = asked(op, key, fields); // this thread may have been the first to notice
        }
        if (!c.done()) {
            throw silent();
        }
        if (c.answer().error() != null) {
            c.answer().error().fillInStackTrace();
            throw c.answer().error();
        }
        if (c.answer().code() != Codes.OK) {
            throw failure(c.answer());
        }
        return c;
    }

    /** Asks for the state of the lock of a key; with mode Codes.PERMIT, of its semaphore. */
    Inspection inspect(Keys key, long... modeAndFlags) {
        return ask(Codes.INSPECT, key.utf8[0], modeAndFlags).inspection;
    }

    private Call asked(int op, byte[] key, long... fields) {
        Call c = new Call(op, null, null, null);
        connection().requests.send(c, key, fields);
        c.awaitUninterruptibly(System.nanoTime() + setup.timeout);
        return c;
    }

    /** Runs then on the I/O thread after the time; runs whenClosed if the client is closed first or has no such thread. */
    void later(long millis, Runnable then, Runnable whenClosed) {
        mu.lock();
        boolean late = closed;
        if (!late) {
            Timer timer = new Timer(System.nanoTime() + millis * 1_000_000, then, whenClosed);
            timers.add(timer);
            late = run() != null && timers.remove(timer);
        }
        mu.unlock();
        if (late) {
            whenClosed.run();
        }
    }

    void wakeup() {
        mu.lock();
        IoThread t = io;
        mu.unlock();
        if (t != null) {
            t.wakeup();
        }
    }

    /**
     * Runs a callback on a thread of an executor. It never throws, even if the callback or the executor fails, so that the
     * caller continues with the next callback.
     */
    void execute(Runnable callback) {
        execute(callbacks, new Task(callback));
    }

    private void execute(Callbacks own, Task task) {
        if (setup.executor != null) {
            Conn c = conn;
            if (c != null && c.isLeader()) { // the executor may run the task at once, but this caller reads the connection
                later(0, () -> execute(own, task), task);
                return;
            }
            try {
                setup.executor.execute(task);
                return;
            } catch (RuntimeException | Error e) { // it was shut down, or has no thread; the task must still run
                LOG.log(System.Logger.Level.DEBUG, "the executor refused a callback", e);
            }
        }
        try {
            own.execute(task);
        } catch (RuntimeException | Error e) {
            LOG.log(System.Logger.Level.WARNING, "cannot start a thread for a callback", e);
            later(RETRY, () -> execute(own, task), task);
        }
    }

    /** A callback that runs only once. */
    private static final class Task implements Runnable {
        private final AtomicReference<Runnable> task;

        Task(Runnable task) {
            this.task = new AtomicReference<>(task);
        }

        @Override
        public void run() {
            Runnable mine = task.getAndSet(null); // null if an executor ran it and then threw
            try {
                if (mine != null) {
                    mine.run();
                }
            } catch (Throwable e) {
                LOG.log(System.Logger.Level.ERROR, "a callback failed", e);
            }
        }
    }

    /** Calls take for each of all, even if it throws for some; then throws the first exception. */
    static <T> void each(Iterable<T> all, Consumer<T> take) {
        Throwable first = null;
        for (T one : all) {
            try {
                take.accept(one);
            } catch (RuntimeException | Error e) {
                first = first == null ? e : first;
            }
        }
        if (first instanceof RuntimeException e) {
            throw e;
        } else if (first instanceof Error e) {
            throw e;
        }
    }

    /** Tells a listener of a loss. */
    void tell(Consumer<LostException> listener, LostException loss) {
        execute(listeners, new Task(() -> listener.accept(loss)));
    }

    /** Remembers a lost hold for its owner, which is told at the unlock. */
    void remember(Hold hold) {
        losses.add(hold);
    }

    void forget(Hold hold) {
        losses.remove(hold);
    }

    /** Returns the owner's hold, or the one that it has lost and not yet released; null without either. */
    Hold hold(Hold.Id id) {
        Conn c = conn; // one that has just ended, too: it moves its holds to the losses under its lock
        Hold hold = c == null ? null : c.find(id);
        return hold != null ? hold : losses.find(id);
    }

    /** Returns the number of lost holds that are remembered. */
    int losses() {
        return losses.size();
    }

    /**
     * Returns the exception for an acquire if its owner, or another handle of its thread, has lost a key and not released it;
     * or null.
     */
    LostException unreleased(Acquire a) {
        return losses.refusal(a.ids(), a.site());
    }

    /** Like unreleased, but no lock is held. If the connection is about to end, all of its holds count as lost. */
    LostException lossOf(Acquire a) {
        Conn c = conn;
        if (c == null || c.dead == null) {
            return unreleased(a);
        }
        c.mu.lock(); // the connection moves its holds to the losses under it
        try {
            return unreleased(a);
        } finally {
            c.mu.unlock();
        }
    }

    /** Returns the exception for a failed reply. */
    LockException failure(Wait.Answer a) {
        return LockException.reply(a.code(), a.text() + " (daemon at " + setup.path + ")");
    }

    /** Returns e with the daemon's path in its message. */
    LockException placed(LockException e) {
        boolean bare = e.code() == Code.CLOSED || e.isProtocol();
        return bare ? LockException.of(e.code(), e.getMessage() + " (daemon at " + setup.path + ")", e) : e;
    }

    UnavailableException silent() {
        return new UnavailableException(Code.UNAVAILABLE, "the daemon at " + setup.path + " has not answered for "
                + setup.timeout / 1_000_000 + " ms");
    }

    UnavailableException closing() {
        return new UnavailableException(Code.CLOSED, "the client is closed (daemon at " + setup.path + ")");
    }

    /** Ends everything, and waits until the socket is closed. Idempotent. */
    void close() {
        List<Dial> waiting;
        List<Timer> left;
        IoThread t;
        mu.lock();
        try {
            closed = true;
            waiting = dials;
            dials = new ArrayList<>();
            left = List.copyOf(timers);
            timers.clear();
            t = io;
        } finally {
            mu.unlock();
        }
        Conn c = conn;
        if (c != null) {
            c.die(closing(), "closed");
        }
        each(waiting, d -> d.failed(closing()));
        each(left, timer -> timer.closed.run());
        if (t != null) {
            t.wakeup();
            join(t);
        }
        listeners.close();
        callbacks.close();
    }

    private void join(IoThread t) {
        boolean interrupted = false;
        long end = System.nanoTime() + setup.timeout;
        while (t.isAlive() && System.nanoTime() - end < 0) {
            try {
                t.join(Math.max(1, setup.timeout / 1_000_000));
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Starts the I/O thread, or wakes it; returns the error if it cannot be started, or null. mu is held. */
    private LockException run() {
        if (io != null) {
            io.wakeup();
            return null;
        }
        try {
            IoThread t = threads.apply(this);
            t.start();
            io = t; // it needs mu before it can end
            return null;
        } catch (RuntimeException | Error e) { // the next caller tries it again
            return new UnavailableException(Code.UNAVAILABLE, "cannot start the client's thread: " + e, e);
        }
    }

    // ---- for the I/O thread ----

    /** Tells whether there is anything to do. */
    boolean busy() {
        mu.lock();
        try {
            return !dials.isEmpty() || !timers.isEmpty();
        } finally {
            mu.unlock();
        }
    }

    /** Like busy; but if there is nothing to do, the thread is no longer the one that runs. */
    boolean stays() {
        mu.lock();
        try {
            if (dials.isEmpty() && timers.isEmpty()) {
                io = null;
                return false;
            }
            return true;
        } finally {
            mu.unlock();
        }
    }

    /** Forgets the thread, which cannot continue. */
    void ended() {
        mu.lock();
        io = null;
        mu.unlock();
    }

    /** What to do about a connection. */
    enum Next { NOTHING, WAIT, DIAL }

    /** Tells whether a connection is wanted, and whether to try now or at that System.nanoTime. */
    Next next(long at) {
        mu.lock();
        try {
            boolean now = fresh || System.nanoTime() - at >= 0;
            fresh = false;
            return dials.isEmpty() ? Next.NOTHING : now ? Next.DIAL : Next.WAIT;
        } finally {
            mu.unlock();
        }
    }

    /** Makes c the connection, and gives it to all waiting callers. */
    void connected(Conn c) {
        List<Dial> waiting;
        mu.lock();
        try {
            conn = c;
            waiting = dials;
            dials = new ArrayList<>();
        } finally {
            mu.unlock();
        }
        if (closed) {
            c.die(closing(), "closed");
        }
        each(waiting, d -> d.connected(c));
    }

    /** Fails the callers that would not wait until next, or all. */
    void failed(LockException why, long next, boolean all) {
        List<Dial> over = new ArrayList<>();
        mu.lock();
        try {
            dials.removeIf(d -> (all || next - d.until() >= 0) && over.add(d));
        } finally {
            mu.unlock();
        }
        each(over, d -> d.failed(why.again()));
    }

    /** Ends the connection and fails all waiting callers: this client has a fault, and no hold may count any more. */
    void fail(LockException why) {
        Conn c = conn;
        if (c != null) {
            c.die(why, "connection");
        }
        failed(why, 0, true);
    }

    /** Runs the due timers, and returns the nanoseconds until the next one: at least 1, and at most so many. */
    long timers(long most) {
        while (true) {
            Timer first;
            mu.lock();
            try {
                first = timers.peek();
                if (first == null || first.at - System.nanoTime() > 0) {
                    return first == null ? most : Math.max(1, Math.min(most, first.at - System.nanoTime()));
                }
                timers.poll();
            } finally {
                mu.unlock();
            }
            first.then.run();
        }
    }
}
