package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.nio.channels.ClosedByInterruptException;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A candidate for leadership, made by {@link Sidecar#election}. It campaigns until it is stopped, and leads for one
 * {@link Term} at a time. An election is an exclusive lock on the key, so it also excludes other lockers of the key.
 *
 * <pre>{@code
 * try (Election election = sidecar.election("scheduler", term -> {
 *     while (true) {
 *         schedule(queue.take(), term.fence()); // interrupted when the term is over
 *         term.check();
 *     }
 * })) {
 *     election.run(); // or start()
 * }
 * }</pre>
 *
 * <p><b>Order.</b> Candidates are elected in the order in which they arrived, as for any lock. {@link #resign} ends the
 * present term and goes to the end of the queue. {@link #stop} ends the term and the campaign.
 *
 * <p><b>The end of a term by the candidate itself.</b> The thread of {@link Listener#onElected} is interrupted, and
 * {@link Listener#onLost} is called. The lock is released only when both have returned. So a successor never begins
 * while this term still works. An {@code onElected} that does not return keeps the lock.
 *
 * <p><b>The loss of a term</b> (because the daemon was killed, or this process was stopped for too long). Another
 * candidate may lead at once. The thread of {@code onElected} is interrupted and {@code onLost} is called at once.
 * {@code onElected} may still run, and only {@link Term#fence} protects its writes. The next term does not begin before
 * both have returned.
 *
 * <p><b>Failures.</b> A campaign continues if the daemon is away or draining, its store is unavailable, or a limit is
 * reached. Its pauses grow to two seconds. Other errors end it, such as {@link LockException.Code#DENIED} and {@link
 * LockException.Code#INVALID}, and so does closing the client.
 */
public final class Election implements AutoCloseable {
    /** The program's part of an election. */
    @FunctionalInterface
    public interface Listener {
        /**
         * Begins a term, in a daemon thread of its own. The term does not end when this method returns, but when it is
         * lost or ended by the candidate. At that moment the thread is interrupted if it still runs the method.
         *
         * <p>The thread works under the term. So an acquire of the election's key in it, other than by a named {@link Owner} or
         * without blocking, is refused as for any lock that the thread holds: with {@link LockException.Code#ALREADY_HELD} during the
         * term, and with {@link LostException} after its loss.
         *
         * <p>An exception ends the term and the campaign, unless it only says that the term was already over: an {@link
         * InterruptedException}, a {@link ClosedByInterruptException} or this term's {@link LostException}, or one
         * caused by them.
         *
         * @param term the term that begins
         * @throws Exception whatever it likes
         */
        void onElected(Term term) throws Exception;

        /**
         * Is called when a term is over: once for each {@link #onElected} that has begun, at once, by the thread of the
         * campaign, even if {@code onElected} still runs. An exception ends the campaign. The default does nothing.
         *
         * @param term the term that is over
         * @param reason the loss; empty if the candidate ended the term itself
         * @throws Exception whatever it likes
         */
        default void onLost(Term term, Optional<LostException> reason) throws Exception {}
    }

    /** Milliseconds between two failed attempts: the first pause, and the longest. */
    private static final long PAUSE = 20;
    private static final long LONGEST = 2000;

    private final Link link;
    private final Keys key;
    private final LockOptions options;
    private final Listener listener;
    private final Mutex mu = new Mutex();
    private final CountDownLatch over = new CountDownLatch(1);
    private boolean entered; // mu
    private Acquire asking; // mu
    /** The thread that campaigns; null before and after that. */
    private Thread campaigner; // mu
    private volatile boolean stopped; // written under mu
    private volatile Work work; // written under mu; null without a term
    private volatile Throwable failure;

    /** The campaign waits for this if it does not wait for the lock. */
    private final Wait turn = new Wait() {
        @Override
        boolean done() {
            Work w = work;
            return w == null ? stopped : w.term.over() || w.thrown != null;
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
        return thread instanceof Work work && work.term.hold.conn.link == link ? work.term.hold : null;
    }

    Election(Link link, Keys key, Listener listener, LockOptions options) {
        if (options.shared || options.flags() != 0 || options.owner != null || options.byThread) {
            throw new LockException(
                    Code.INVALID, "an election's lock is exclusive, renewed by the daemon, and its own owner");
        }
        this.link = link;
        this.key = key;
        this.listener = listener;
        this.options = options;
    }

    /**
     * Returns the key of the election.
     *
     * @return the key
     */
    public String key() {
        return key.text[0];
    }

    /**
     * Campaigns in this thread, until the election is stopped or closed.
     *
     * @throws InterruptedException if this thread is interrupted: that ends the campaign as {@link #stop} does, and the
     *     lock has been released
     * @throws LockException if the campaign ended with an error that does not pass. One is that this thread holds the
     *     key by a lock or lease, or has lost it and not released it
     * @throws IllegalStateException if this election has campaigned before
     * @throws Exception if the listener threw it
     */
    public void run() throws Exception {
        enter();
        boolean interrupted = campaign();
        if (failure instanceof Error e) {
            throw e;
        } else if (failure != null) {
            throw (Exception) failure;
        } else if (interrupted) {
            throw new InterruptedException();
        }
    }

    /**
     * Campaigns in a thread of its own, a daemon thread, until the election is stopped or closed. Does not block. The
     * exception that {@link #run} would throw is logged, and kept as {@link #failure}.
     *
     * @return this
     * @throws IllegalStateException if this election has campaigned before
     */
    public Election start() {
        return start(task -> Callbacks.thread(task, "locksidecar-election").start());
    }

    /**
     * Campaigns in a thread of an executor, which it occupies until the election is stopped or closed. Does not block.
     *
     * @param executor runs the campaign, and {@link Listener#onLost}
     * @return this
     * @throws IllegalStateException if this election has campaigned before
     * @see #start()
     */
    public Election start(Executor executor) {
        enter();
        try {
            executor.execute(() -> {
                if (campaign()) {
                    Thread.currentThread().interrupt(); // for the executor
                }
                if (failure != null) {
                    Link.LOG.log(System.Logger.Level.ERROR, this + ": the campaign has ended", failure);
                }
            });
        } catch (RuntimeException | Error e) {
            stop();
            throw e;
        }
        return this;
    }

    /**
     * Ends the present term, if there is one, and goes to the end of the queue. Returns at once: the lock is released
     * when the listener has returned.
     */
    public void resign() {
        Work w = work;
        if (w != null) {
            w.term.giveUp();
        }
    }

    /**
     * Ends the campaign, and the present term if there is one. Returns at once: the lock is released when the listener
     * has returned. {@link #close} waits for that.
     */
    public void stop() {
        Acquire a;
        mu.lock();
        try (mu) {
            stopped = true;
            a = asking;
        }
        if (a != null) {
            a.giveUp(new NotAcquiredException(Code.CANCELED, "the election is stopped"));
        }
        resign();
        turn.wake();
    }

    /**
     * Stops, and waits until the listener has returned and the lock is released. If the listener calls it, it does not
     * wait. An interrupt ends the wait, and is kept; the rest is still done. Idempotent.
     */
    @Override
    public void close() {
        stop();
        mu.lock();
        Thread me = Thread.currentThread();
        boolean waits = campaigner != null && me != campaigner && me != work;
        mu.unlock();
        if (waits) {
            try {
                over.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /**
     * Tells whether this candidate leads now, by everything that the daemon has stated. Sends nothing, and blocks no
     * longer than {@link Lease#isValid} does.
     *
     * @return whether there is a term that is {@linkplain Term#isValid valid}
     */
    public boolean isLeader() {
        return term().isPresent();
    }

    /**
     * Returns the present term.
     *
     * @return the term; empty while this candidate does not lead
     */
    public Optional<Term> term() {
        return Optional.ofNullable(work).map(w -> w.term).filter(Term::isValid);
    }

    /**
     * Returns the exception that ended the campaign: of the listener, or an error that does not pass.
     *
     * @return the failure; empty while the campaign continues, and after a stop
     */
    public Optional<Throwable> failure() {
        return Optional.ofNullable(failure);
    }

    @Override
    public String toString() {
        return "Election[" + key() + (isLeader() ? ", leading]" : "]");
    }

    /** Begins to campaign. The caller runs campaign on any thread after that. */
    private void enter() {
        mu.lock();
        try (mu) {
            if (entered) {
                throw new IllegalStateException("an election campaigns once");
            }
            entered = true;
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
    private boolean campaign() {
        mu.lock();
        try (mu) {
            if (stopped) {
                return false;
            }
            campaigner = Thread.currentThread();
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
            mu.lock();
            campaigner = null;
            mu.unlock();
            over.countDown();
        }
        return interrupted;
    }

    /** Waits for the lock, also over failures that may pass; null if the election is stopped. */
    private Hold elected() throws InterruptedException {
        long pause = PAUSE;
        for (boolean said = false; ask(); ) {
            try {
                Hold hold = asking.awaited().hold();
                if (hold != null) {
                    return hold;
                }
                pause = PAUSE; // the longest wait that the daemon allows is over
            } catch (LockException e) {
                if (stopped) {
                    return null;
                }
                if (!mayPass(e) || link.closed) {
                    throw e;
                }
                if (!said) {
                    Link.LOG.log(System.Logger.Level.INFO, "Election[" + key() + "] continues: " + e.getMessage());
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
     * Tells whether a later attempt may succeed. It cannot if this thread has lost the lock and not released it, because the
     * thread does not release it during the attempts.
     */
    private boolean mayPass(LockException e) {
        return e instanceof UnavailableException || e.code() == Code.LIMIT
                || e instanceof LostException && link.lossOf(asking) == null;
    }

    /** Makes the next acquire, unless the election is stopped. */
    private boolean ask() {
        mu.lock();
        try (mu) {
            asking = stopped ? null : Acquire.of(link, key, options, -1, "Election[" + key() + "]", Owner.ofThread(), null, null);
            return asking != null;
        }
    }

    /** Leads for one term, to its end. */
    private void lead(Hold hold) throws InterruptedException {
        Term t = new Term(hold, turn::wake);
        Work w = new Work(t);
        boolean interrupted = false;
        try {
            t.watch();
            if (enter(t, w)) {
                w.start();
                turn.await(null);
            }
        } catch (InterruptedException e) {
            interrupted = true;
        } catch (Throwable e) { // for example, the thread cannot be started
            fail(e);
        }
        if (!t.over() && w.thrown != null) {
            fail(w.thrown);
        }
        t.giveUp();
        w.interrupt(); // no effect if the thread was not started, like the lines that follow
        if (!w.begun.compareAndSet(null, false)) {
            tell(t);
        }
        interrupted |= Wait.join(w, Long.MAX_VALUE);
        if (w.thrown != null && w.thrown != failure && !isEnd(t, w.thrown)) {
            fail(w.thrown);
        }
        leave(hold);
        if (interrupted) {
            throw new InterruptedException();
        }
    }

    /** Begins a term; false if it is over already. */
    private boolean enter(Term t, Work w) {
        mu.lock();
        try (mu) {
            work = w;
            asking = null;
            if (stopped) {
                t.giveUp();
            }
            return !t.over();
        }
    }

    /** Ends a term after its work has ended. */
    private void leave(Hold hold) {
        mu.lock();
        work = null;
        mu.unlock();
        try {
            hold.release(false, 0);
        } catch (NotHeldException e) {
            Link.LOG.log(System.Logger.Level.DEBUG, e.getMessage()); // its owner was told, or the term was ending anyway
        }
    }

    private void tell(Term t) {
        try {
            listener.onLost(t, t.loss());
        } catch (Throwable e) {
            fail(e);
        }
    }

    /** Tells whether the exception of onElected only says that its term is over. */
    private static boolean isEnd(Term t, Throwable thrown) {
        int depth = 0;
        for (Throwable e = thrown; e != null && depth < 100; e = e.getCause(), depth++) {
            if (e instanceof InterruptedException || e instanceof ClosedByInterruptException
                    || e instanceof LostException loss && loss.key().equals(t.key()) && loss.fence() == t.fence()) {
                return true;
            }
        }
        return false;
    }
}
