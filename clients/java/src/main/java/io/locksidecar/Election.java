package io.locksidecar;

import java.nio.channels.ClosedByInterruptException;
import java.util.Optional;
import java.util.concurrent.Executor;

/**
 * A candidate for being the one that leads: made by {@link Sidecar#election}. It campaigns until it is stopped, and
 * leads for a {@link Term} at a time. There is no more to it than an exclusive lock on the key, so it excludes the
 * key's other lockers too.
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
 * <p><b>Whose turn it is.</b> Candidates are elected in the order in which they came, as for any lock. {@link
 * #resign} gives the present term up and goes to the end of the queue; {@link #stop} gives it up and ends the
 * campaign.
 *
 * <p><b>A term given up is released last:</b> the thread of {@link Listener#onElected} is interrupted, {@link
 * Listener#onLost} is called, and only when both have returned is the lock released. So a successor never begins while
 * our own term still works; and an {@code onElected} that does not end keeps the leadership from everybody.
 *
 * <p><b>A term that is lost</b> (the daemon was killed, or this process stopped for too long) cannot be kept: others
 * may lead at once. The thread of {@code onElected} is interrupted and {@code onLost} called at once, while {@code
 * onElected} may still run, and only {@link Term#fence} protects what it still writes. The next term does not begin
 * before both have returned.
 *
 * <p><b>The daemon</b> being away or draining, its store being unavailable, or a limit being reached do not end a
 * campaign: it goes on, with pauses that grow to two seconds. What cannot mend itself ends it: {@link DeniedException},
 * {@link InvalidException}, {@link UnsupportedException}, {@link ProtocolException}, and the client's being closed.
 */
public final class Election implements AutoCloseable {
    /** What a candidate does with its terms. */
    @FunctionalInterface
    public interface Listener {
        /**
         * Begins a term, in a thread of its own, a daemon thread. That it returns does not end the term, which lasts
         * until it is lost or given up; at that moment the thread is interrupted if it is still here.
         *
         * <p>The thread works under the term. So an acquire of the election's key in it, other than by a named {@link Owner} or
         * without blocking, is refused as for any lock that the thread holds: with {@link AlreadyHeldException} during the
         * term, and with {@link LostException} after its loss.
         *
         * <p>An exception gives the term up and ends the campaign, unless it says no more than that the term was over
         * when it was thrown: an {@link InterruptedException}, a {@link ClosedByInterruptException} or this term's
         * {@link LostException}, or one caused by them.
         *
         * @param term the term that begins
         * @throws Exception whatever it likes
         */
        void onElected(Term term) throws Exception;

        /**
         * Hears that a term is over: called once for each {@link #onElected} that has begun, at once, by the thread
         * of the campaign, while {@code onElected} may still run. An exception ends the campaign. By itself it does
         * nothing.
         *
         * @param term the term that is over
         * @param reason the loss; nothing if we gave the term up ourselves
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
     * Returns what the candidates compete for.
     *
     * @return the key
     */
    public String key() {
        return campaign.key();
    }

    /**
     * Campaigns in this thread, until the election is stopped or closed.
     *
     * @throws InterruptedException if this thread is interrupted: that ends the campaign as {@link #stop} does, and
     *     the leadership has been given up
     * @throws LockException if the campaign ended with an error that cannot mend itself. One is that this thread holds the key
     *     by a lock or lease, or has lost it and not released it
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
     * Gives up the present term, if there is one, and goes to the end of the queue. Returns at once: the leadership is
     * released when the listener has come to its end.
     */
    public void resign() {
        campaign.resign();
    }

    /**
     * Ends the campaign, and gives up the present term if there is one. Returns at once: the leadership is released
     * when the listener has come to its end; {@link #close} waits for that.
     */
    public void stop() {
        campaign.stop();
    }

    /**
     * Stops, and waits until the listener has come to its end and the leadership is released. Called by the listener it
     * does not wait. An interrupt ends the wait, and is kept; what is left to be done is done all the same. Idempotent.
     */
    @Override
    public void close() {
        campaign.stop();
        campaign.await();
    }

    /**
     * Tells whether we lead at this very moment, by all that the daemon has stated. Asks nobody, and blocks no longer than {@link
     * Lease#isValid} does.
     *
     * @return whether there is a term that is {@linkplain Term#isValid valid}
     */
    public boolean isLeader() {
        return term().isPresent();
    }

    /**
     * Returns the present term.
     *
     * @return the term; nothing while we do not lead
     */
    public Optional<Term> term() {
        return Optional.ofNullable(campaign.term()).filter(Term::isValid);
    }

    /**
     * Returns what ended the campaign: what the listener threw, or an error that cannot mend itself.
     *
     * @return the failure; nothing while the campaign goes on, and after a stop
     */
    public Optional<Throwable> failure() {
        return Optional.ofNullable(campaign.failure());
    }

    @Override
    public String toString() {
        return "Election[" + key() + (isLeader() ? ", leading]" : "]");
    }
}
