package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.PriorityQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.FutureTask;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * The part of a client that outlives its connections: the present connection, the callers that wait for one, timers, and
 * executors of callbacks.
 *
 * <p>The {@link IoThread} makes the connection when a caller needs it, and makes it again after its end. That thread runs
 * while there is a connection, or a caller that waits for one, or a timer.
 *
 * <p>Lock order: Conn.mu, then Link.mu. No thread waits for anything else while it holds one of them.
 */
final class Link {
    /** A caller that waits for a connection until System.nanoTime reaches until; see {@link #dial}. */
    private record Dial(long until, Consumer<Object> then) {}

    /** The settings of a client; times are in nanoseconds. The executor and the listener may be null. */
    record Setup(Path path, String name, String label, long timeout, long patience, boolean confirm, Executor executor,
            Consumer<LostException> onLost, Supplier<String> traceparent) {}

    /** Length of a traceparent, in characters. */
    private static final int TRACE = 55;
    /** Milliseconds until a callback for which there was no thread is tried again. */
    private static final long RETRY = 100;

    /** A task for later, or for when the client is closed before. */
    record Timer(long at, Runnable then, Runnable closed) {}

    static final System.Logger LOG = System.getLogger("io.locksidecar");
    final Setup setup;
    /** The lost holds, whose owners are told at the unlock. */
    final Holds.Losses losses = new Holds.Losses();
    /** The client's own executors, for loss listeners and other callbacks. They also run what the program's refuses. */
    private final Callbacks listeners = new Callbacks("locksidecar-loss", Callbacks.THREADS, Callbacks.PAUSE);
    private final Callbacks callbacks = new Callbacks("locksidecar-callback", Callbacks.THREADS, Callbacks.PAUSE);
    private final Mutex mu = new Mutex();
    private final PriorityQueue<Timer> timers = new PriorityQueue<>(Comparator.comparingLong(Timer::at)); // mu
    private List<Dial> dials = new ArrayList<>(); // mu
    private boolean fresh; // mu: a caller has come since the last attempt, so the next attempt is made at once
    private IoThread io; // mu; null when none runs
    /** Makes the I/O thread; tests replace it. */
    volatile Function<Link, IoThread> threads = IoThread::new;
    private volatile Conn conn; // the newest connection, which may have ended
    volatile boolean closed; // written under mu

    Link(Setup setup) {
        this.setup = setup;
    }

    /** Returns the traceparent of the caller, for an acquire; null if there is none. */
    byte[] trace() {
        String trace = setup.traceparent.get();
        return trace == null || trace.length() != TRACE ? null : trace.getBytes(StandardCharsets.US_ASCII);
    }

    // ---- for callers ----

    /** Returns the connection, or null if there is none or it has ended. */
    Conn live() {
        Conn c = conn;
        return c != null && c.dead == null ? c : null;
    }

    /**
     * Calls {@code then} with a connection, at once if there is one; or with the LockException that explains why there is none.
     * Attempts to connect continue until System.nanoTime reaches {@code until}. {@code then} must not block.
     */
    void dial(long until, Consumer<Object> then) {
        Object made = live();
        if (made == null) {
            mu.lock();
            try (mu) {
                made = live();
                if (made == null && !closed) {
                    fresh = true;
                    made = startOrWake();
                    if (made == null) {
                        dials.add(new Dial(until, then)); // the I/O thread cannot miss it: it needs mu before it ends
                        return;
                    }
                }
            }
        }
        then.accept(closed ? closing() : made);
    }

    /** Waits for the connection. Makes one attempt to connect. */
    Conn connection() {
        Wait.Value<Object> made = new Wait.Value<>(null);
        dial(System.nanoTime(), made::set);
        made.awaitUninterruptibly(null);
        if (made.value instanceof LockException why) {
            throw why.here();
        }
        return (Conn) made.value;
    }

    /** Sends a request that belongs to no acquire or hold, and waits for its success. Throws a failure. */
    Call ask(int op, byte[] key, long... fields) {
        Call c = exchange(op, key, fields);
        boolean repeatable = op == Codes.INSPECT || op == Codes.PING; // any other request may have taken effect
        if (repeatable && c.done() && c.failedWith(Code.CLOSED) && !closed) {
            c = exchange(op, key, fields); // the connection may have ended long before, unnoticed until this request
        }
        if (!c.done()) {
            throw silent();
        }
        if (c.answer.error() != null) {
            throw c.answer.error().here();
        }
        if (c.answer.code() != Codes.OK) {
            throw failure(c.answer);
        }
        return c;
    }

    /** Asks for the state of a key's lock, or of its semaphore if the mode is Codes.PERMIT. */
    Inspection inspect(Keys key, long... modeAndFlags) {
        return ask(Codes.INSPECT, key.utf8[0], modeAndFlags).inspection;
    }

    /** Ends the holds of a key with this mode that have this fence, or all if it is 0; returns their number. */
    long forceUnlock(Keys key, int mode, long fence) {
        return ask(Codes.FORCE_UNLOCK, key.utf8[0], mode, fence).answer.number();
    }

    /** Sends a request, and waits for its answer no longer than the timeout. */
    private Call exchange(int op, byte[] key, long... fields) {
        Call c = new Call(op, null, null);
        connection().requests.send(c, key, fields);
        c.awaitUninterruptibly(System.nanoTime() + setup.timeout);
        return c;
    }

    /** Runs {@code then} on the I/O thread after a time; runs {@code whenClosed} if the client is closed first or has no such thread. */
    void later(long millis, Runnable then, Runnable whenClosed) {
        mu.lock();
        boolean late = closed;
        if (!late) {
            Timer timer = new Timer(System.nanoTime() + millis * 1_000_000, then, whenClosed);
            timers.add(timer);
            late = startOrWake() != null && timers.remove(timer);
        }
        mu.unlock();
        if (late) {
            whenClosed.run();
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
            if (c != null && c.isLeader()) { // this caller reads the connection, and the executor may run the task on it
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

    /** A callback that runs only once, even if an executor runs it and then throws. */
    private static final class Task extends FutureTask<Void> {
        Task(Runnable callback) {
            super(callback, null);
        }

        @Override
        protected void setException(Throwable e) {
            super.setException(e);
            LOG.log(System.Logger.Level.ERROR, "a callback failed", e);
        }
    }

    /** Calls {@code take} for each element, even after it has thrown; then throws the first exception. */
    static <T> void each(List<T> all, Consumer<T> take) {
        Runnable first = null;
        for (int i = 0; i < all.size(); i++) {
            try {
                take.accept(all.get(i));
            } catch (RuntimeException | Error e) {
                first = first != null ? first : () -> {
                    throw e;
                };
            }
        }
        if (first != null) {
            first.run();
        }
    }

    /** Tells a listener of a loss. */
    void tell(Consumer<LostException> listener, LostException loss) {
        execute(listeners, new Task(() -> listener.accept(loss)));
    }

    /** Returns the owner's hold, or the one that it has lost and not yet released; null without either. */
    Hold hold(Hold.Id id) {
        Conn c = conn; // even if it has just ended: under its lock, it moves its holds to the losses
        Hold hold = c == null ? null : c.find(id);
        return hold != null ? hold : losses.find(id);
    }

    /**
     * Returns the exception for an acquire if its owner, or another handle of its thread, has lost a key and not released it;
     * or null.
     */
    LostException unreleased(Acquire a) {
        return losses.refusal(a.ids, a.terms.site());
    }

    /** Like {@link #unreleased}, for callers without a lock. If the connection has just ended, all of its holds count as lost. */
    LostException lossOf(Acquire a) {
        Conn c = conn;
        if (c == null || c.dead == null) {
            return unreleased(a);
        }
        c.mu.lock(); // the connection moves its holds to the losses under it
        try (c.mu) {
            return unreleased(a);
        }
    }

    /** Returns the exception for a failed reply. */
    LockException failure(Answer a) {
        return LockException.reply(a.code(), a.text() + " (daemon at " + setup.path + ")");
    }

    /** Returns e with the daemon's path in its message, if the message has no path yet. */
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
        List<Timer> left;
        IoThread t;
        mu.lock();
        try (mu) {
            closed = true;
            left = List.copyOf(timers);
            timers.clear();
            t = io;
        }
        fail(closing(), "closed");
        each(left, timer -> timer.closed.run());
        if (t != null) {
            t.wakeup();
            if (Wait.join(t, setup.timeout)) {
                Thread.currentThread().interrupt();
            }
        }
        listeners.close();
        callbacks.close();
    }

    /** Starts the I/O thread, or wakes it; returns the error if it cannot be started, or null. mu is held. */
    private LockException startOrWake() {
        if (io != null) {
            io.wakeup();
            return null;
        }
        try {
            IoThread t = threads.apply(this);
            t.start();
            io = t; // the thread cannot have ended: it needs mu for that
            return null;
        } catch (RuntimeException | Error e) { // the next caller tries again
            return new UnavailableException(Code.UNAVAILABLE, "cannot start the client's thread: " + e, e);
        }
    }

    // ---- for the I/O thread ----

    /** Tells whether there is anything to do. If not, and {@code last} is true, the calling I/O thread counts as ended. */
    boolean busy(boolean last) {
        mu.lock();
        try (mu) {
            boolean busy = !dials.isEmpty() || !timers.isEmpty();
            io = busy || !last ? io : null;
            return busy;
        }
    }

    /** Forgets the I/O thread, which cannot continue. */
    void ended() {
        mu.lock();
        io = null;
        mu.unlock();
    }

    /** Returns the nanoseconds until the next attempt to connect, which is planned for System.nanoTime {@code at}; 0 for now. */
    long untilDial(long at) {
        mu.lock();
        try (mu) {
            long left = fresh ? 0 : Math.max(0, at - System.nanoTime());
            fresh = false;
            return dials.isEmpty() ? Long.MAX_VALUE : left;
        }
    }

    /** Makes c the connection, and gives it to all waiting callers. */
    void connected(Conn c) {
        List<Dial> waiting;
        mu.lock();
        try (mu) {
            conn = c;
            waiting = dials;
            dials = new ArrayList<>();
        }
        if (closed) {
            c.die(closing(), "closed");
        }
        each(waiting, d -> d.then.accept(c));
    }

    /** Fails the callers that do not wait until the next attempt, at System.nanoTime {@code next}; or all callers. */
    void failed(LockException why, long next, boolean all) {
        List<Dial> over = new ArrayList<>();
        mu.lock();
        try (mu) {
            dials.removeIf(d -> (all || next - d.until >= 0) && over.add(d));
        }
        each(over, d -> d.then.accept(why.again()));
    }

    /** Ends the connection and fails all waiting callers. All holds are lost, for this reason. */
    void fail(LockException why, String reason) {
        Conn c = conn;
        if (c != null) {
            c.die(why, reason);
        }
        failed(why, 0, true);
    }

    /** Runs the due timers, and returns the nanoseconds until the next one: at least 1, and at most {@code max}. */
    long timers(long max) {
        while (true) {
            Timer first;
            mu.lock();
            try (mu) {
                first = timers.peek();
                if (first == null || first.at - System.nanoTime() > 0) {
                    return first == null ? max : Math.max(1, Math.min(max, first.at - System.nanoTime()));
                }
                timers.poll();
            }
            first.then.run();
        }
    }
}
