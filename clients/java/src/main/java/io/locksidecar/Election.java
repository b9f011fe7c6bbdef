package io.locksidecar;

import java.nio.channels.ClosedByInterruptException;
import java.util.Optional;
import java.util.concurrent.Executor;

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
 * reached. Its pauses grow to two seconds. These end it: {@link DeniedException}, {@link InvalidException}, {@link
 * UnsupportedException}, {@link ProtocolException}, and closing the client.
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
         * without blocking, is refused as for any lock that the thread holds: with {@link AlreadyHeldException} during the
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

    private static final System.Logger LOG = System.getLogger("io.locksidecar");

    private final Campaign campaign;

    Election(Campaign campaign) {
        this.campaign = campaign;
    }

    /**
     * Returns the key of the election.
     *
     * @return the key
     */
    public String key() {
        return campaign.key();
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
        campaign.enter();
        boolean interrupted = campaign.run();
        Throwable failure = campaign.failure();
        if (failure instanceof Error e) {
            throw e;
        } else if (failure != null) {
            throw (Exception) failure;
        } else if (interrupted) {
            throw new InterruptedException();
        }
    }

    /**
     * Campaigns in a thread of its own, a daemon thread, until the election is stopped or closed. Does not block. What
     * {@link #run} would throw is logged, and kept as {@link #failure}.
     *
     * @return this
     * @throws IllegalStateException if this election has campaigned before
     */
    public Election start() {
        return start(task -> {
            Thread t = new Thread(task, "locksidecar-election");
            t.setDaemon(true);
            t.start();
        });
    }

    /**
     * Campaigns in a thread of an executor, which it takes up until the election is stopped or closed. Does not block.
     *
     * @param executor runs the campaign, and {@link Listener#onLost}
     * @return this
     * @throws IllegalStateException if this election has campaigned before
     * @see #start()
     */
    public Election start(Executor executor) {
        campaign.enter();
        try {
            executor.execute(() -> {
                if (campaign.run()) {
                    Thread.currentThread().interrupt(); // for the executor
                }
                if (campaign.failure() != null) {
                    LOG.log(System.Logger.Level.ERROR, this + ": the campaign has ended", campaign.failure());
                }
            });
        } catch (RuntimeException | Error e) {
            campaign.end();
            throw e;
        }
        return this;
    }

    /**
     * Ends the present term, if there is one, and goes to the end of the queue. Returns at once: the lock is released
     * when the listener has returned.
     */
    public void resign() {
        campaign.resign();
    }

    /**
     * Ends the campaign, and the present term if there is one. Returns at once: the lock is released when the listener
     * has returned. {@link #close} waits for that.
     */
    public void stop() {
        campaign.stop();
    }

    /**
     * Stops, and waits until the listener has returned and the lock is released. If the listener calls it, it does not
     * wait. An interrupt ends the wait, and is kept; the rest is still done. Idempotent.
     */
    @Override
    public void close() {
        campaign.stop();
        campaign.await();
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
        return Optional.ofNullable(campaign.term()).filter(Term::isValid);
    }

    /**
     * Returns what ended the campaign: an exception of the listener, or an error that does not pass.
     *
     * @return the failure; empty while the campaign continues, and after a stop
     */
    public Optional<Throwable> failure() {
        return Optional.ofNullable(campaign.failure());
    }

    @Override
    public String toString() {
        return "Election[" + key() + (isLeader() ? ", leading]" : "]");
    }
}
