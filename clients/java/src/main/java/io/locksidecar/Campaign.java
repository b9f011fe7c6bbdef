package io.locksidecar;

import java.nio.channels.ClosedByInterruptException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.ReentrantLock;

/**
 * One campaign of an {@link Election}: it waits for the lock, leads, and waits again, all on one thread, which also
 * calls onLost. A thread of its own, {@link Work}, runs onElected. At the end of a term, the campaign waits for that
 * thread, and then releases the lock.
 */
final class Campaign {
    private static final System.Logger LOG = System.getLogger("io.locksidecar");
    /** Milliseconds between two failed attempts: the first pause, and the longest. */
    private static final long PAUSE = 20;
    private static final long LONGEST = 2000;

    private enum State { NEW, STARTED, RUNNING, OVER }

    private final Link link;
    private final Keys key;
    private final LockOptions options;
    private final Election.Listener listener;
    private final ReentrantLock mu = new ReentrantLock();
    private final CountDownLatch over = new CountDownLatch(1);
    private State state = State.NEW; // mu
    private Acquire asking; // mu
    private Thread campaigner; // mu
    private volatile boolean stopped; // written under mu
    private volatile Term term; // written under mu
    private volatile Work work;
    private volatile Throwable failure;

    /** What the campaign waits for if it does not wait for the lock. */
    private final Wait turn = new Wait() {
        @Override
        boolean done() {
            Term t = term;
            Work w = work;
            return t == null ? stopped : t.over() || w != null && w.thrown != null;
        }
    };

    /** The thread of one onElected. */
    private final class Work extends Thread {
        private final Term term;
        /** TRUE if it has begun, FALSE if it never will. */
        private final AtomicReference<Boolean> begun = new AtomicReference<>();
        volatile Throwable thrown;

        Work(Term term) {
            super("locksidecar-elected");
            setDaemon(true);
            this.term = term;
        }

        @Override
        public void run() {
            if (begun.compareAndSet(null, true)) {
                try {
                    listener.onElected(term);
                } catch (Throwable e) {
                    thrown = e;
                    turn.wake();
                }
            }
        }
    }

    /** Returns the hold of the term of this client whose onElected runs in a thread; null if there is none. */
    static Hold termIn(Thread thread, Link link) {
        return thread instanceof Campaign.Work work && work.term.hold.conn.link() == link ? work.term.hold : null;
    }

    Campaign(Link link, Keys key, Election.Listener listener, LockOptions options) {
        if (options.isShared() || options.flags() != 0 || options.owner() != null || options.isByThread()) {
            throw new InvalidException("an election's lock is exclusive, renewed by the daemon, and its own owner");
        }
        this.link = link;
        this.key = key;
        this.listener = listener;
        this.options = options;
    }

    String key() {
        return key.text(0);
    }

    /** Returns the term that continues, or has just ended; null without one. */
    Term term() {
        return term;
    }

    Throwable failure() {
        return failure;
    }

    /** Begins to campaign. The caller runs run on any thread after that. */
    void enter() {
        mu.lock();
        try {
            if (state != State.NEW) {
                throw new IllegalStateException("an election campaigns once");
            }
            state = State.STARTED;
            if (stopped) {
                end();
            }
        } finally {
            mu.unlock();
        }
    }

    void end() {
        mu.lock();
        try {
            state = State.OVER;
            campaigner = null;
            over.countDown();
        } finally {
            mu.unlock();
        }
    }

    @Override
    public String toString() {
        return "Election[" + key() + "]";
    }

    void resign() {
        Term t = term;
        if (t != null) {
            t.giveUp();
        }
    }

    void stop() {
        Acquire a;
        mu.lock();
        try {
            stopped = true;
            a = asking;
            if (state == State.STARTED) {
                end(); // no thread has started with it yet
            }
        } finally {
            mu.unlock();
        }
        if (a != null) {
            a.giveUp(new CanceledException("the election is stopped"));
        }
        resign();
        turn.wake();
    }

    /** Waits for the end, unless a callback calls this, or the thread is interrupted. */
    void await() {
        mu.lock();
        Thread me = Thread.currentThread();
        boolean waits = state == State.RUNNING && me != campaigner && me != work;
        mu.unlock();
        if (waits) {
            try {
                over.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }

    // ---- on the campaign's thread ----

    private void fail(Throwable e) {
        if (failure == null) {
            failure = e;
        } else if (failure != e) {
            failure.addSuppressed(e);
        }
    }

    /** Campaigns until it is stopped or has failed; true if it was interrupted. */
    boolean run() {
        mu.lock();
        try {
            if (state != State.STARTED) {
                return false;
            }
            state = State.RUNNING;
            campaigner = Thread.currentThread();
        } finally {
            mu.unlock();
        }
        boolean interrupted = false;
        try {
            while (!stopped && failure == null) {
                Hold hold = elected();
                if (hold != null) {
                    lead(hold);
                }
            }
        } catch (InterruptedException e) {
            interrupted = true;
        } catch (Throwable e) {
            fail(e);
        } finally {
            end();
        }
        return interrupted;
    }

    /** Waits for the lock, also over failures that may pass; null if the election is stopped. */
    private Hold elected() throws InterruptedException {
        long pause = PAUSE;
        for (boolean said = false; ask(); ) {
            try {
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
                asking.start();
                Hold hold = Holding.hold(asking.get(), options);
                if (hold != null) {
                    return hold;
                }
                pause = PAUSE; // the longest wait that the daemon allows is over
            } catch (LockException e) {
                if (stopped) {
                    return null;
                }
                if (!mends(e) || link.closed()) {
                    throw e;
                }
                if (!said) {
                    LOG.log(System.Logger.Level.INFO, this + " goes on: " + e.getMessage());
                }
                said = true;
            }
            long rest = (long) (pause * (0.5 + ThreadLocalRandom.current().nextDouble() / 2) * 1_000_000);
            pause = Math.min(LONGEST, 2 * pause);
            turn.await(System.nanoTime() + rest);
        }
        return null;
    }

    /**
     * Tells whether a later attempt may succeed. A lock that this thread has lost would never be released during the
     * attempts.
     */
    private boolean mends(LockException e) {
        return e instanceof UnavailableException || e instanceof LimitException
                || e instanceof LostException && link.lossOf(asking) == null;
    }

    /** Makes the next acquire, unless the election is stopped. */
    private boolean ask() {
        mu.lock();
        try {
            asking = stopped ? null : Holding.acquire(link, key, options, -1, this, null);
            return asking != null;
        } finally {
            mu.unlock();
        }
    }

    /** Leads for one term, to its end. */
    private void lead(Hold hold) throws InterruptedException {
        Term t = new Term(hold, turn::wake);
        Work w = new Work(t);
        boolean interrupted = false;
        boolean started = false;
        try {
            t.watch();
            if (enter(t, w)) {
                w.start();
                started = true;
                turn.await(null);
            }
        } catch (InterruptedException e) {
            interrupted = true;
        } catch (Throwable e) { // there are no threads left
            fail(e);
        }
        if (!t.over() && w.thrown != null) {
            fail(w.thrown);
        }
        t.giveUp();
        if (started) {
            w.interrupt();
            if (!w.begun.compareAndSet(null, false)) {
                tell(t);
            }
            interrupted |= join(w);
            if (w.thrown != null && w.thrown != failure && !isEnd(t, w.thrown)) {
                fail(w.thrown);
            }
        }
        leave(hold);
        if (interrupted) {
            throw new InterruptedException();
        }
    }

    /** Begins a term; false if it is over already. */
    private boolean enter(Term t, Work w) {
        mu.lock();
        try {
            work = w;
            term = t;
            asking = null;
            if (stopped) {
                t.giveUp();
            }
            return !t.over();
        } finally {
            mu.unlock();
        }
    }

    /** Ends a term after its work has ended. */
    private void leave(Hold hold) {
        mu.lock();
        term = null;
        work = null;
        mu.unlock();
        try {
            Holding.release(hold, false);
        } catch (NotHeldException e) {
            LOG.log(System.Logger.Level.DEBUG, e.getMessage()); // its owner was told, or the term was ending anyway
        }
    }

    private void tell(Term t) {
        try {
            listener.onLost(t, t.loss());
        } catch (Throwable e) {
            fail(e);
        }
    }

    /** Waits for a thread to end, in any case; true if this thread was interrupted. */
    private static boolean join(Thread t) {
        boolean interrupted = false;
        while (true) {
            try {
                t.join();
                return interrupted;
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
    }

    /** Tells whether the exception of onElected only says that its term is over. */
    private static boolean isEnd(Term t, Throwable thrown) {
        Throwable e = thrown;
        for (int depth = 0; e != null && depth < 100; depth++) {
            if (e instanceof InterruptedException || e instanceof ClosedByInterruptException
                    || e instanceof LostException loss && loss.key().equals(t.key()) && loss.fence() == t.fence()) {
                return true;
            }
            e = e.getCause();
        }
        return false;
    }
}
