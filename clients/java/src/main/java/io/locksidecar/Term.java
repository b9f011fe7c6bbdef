package io.locksidecar;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.atomic.AtomicReference;

/**
 * One time of being the leader of an {@link Election}: from being elected to the loss of the lock, or to giving it up
 * by {@link Election#resign}, {@link Election#stop} or an exception. Once over it stays over. Any thread may use it.
 */
public final class Term {
    /** How a term ended: by a loss, or null when we gave it up. */
    private record End(LostException loss) {}

    final Hold hold;
    private final AtomicReference<End> end = new AtomicReference<>();
    private final CompletableFuture<LostException> lost = new CompletableFuture<>();
    /** Wakes the campaign; may be called by any thread. */
    private final Runnable wake;

    Term(Hold hold, Runnable wake) {
        this.hold = hold;
        this.wake = wake;
    }

    /** Begins to hear of the loss of the hold. */
    void watch() {
        boolean over;
        hold.conn.mu.lock();
        try {
            over = hold.over;
            hold.watcher = this::noticed;
        } finally {
            hold.conn.mu.unlock();
        }
        if (over) {
            noticed();
        }
    }

    private void noticed() {
        String reason = hold.lost;
        lose(reason == null ? "gone" : reason);
    }

    private void lose(String reason) {
        LostException loss = hold.loss(reason);
        if (end.compareAndSet(null, new End(loss))) {
            wake.run();
            hold.conn.link().tell(lost::complete, hold.loss(reason));
        }
    }

    /** Ends the term, unless it has ended; the lock stays held. */
    void giveUp() {
        if (end.compareAndSet(null, new End(null))) {
            wake.run();
        }
    }

    boolean over() {
        return end.get() != null;
    }

    /** Returns the loss by which it ended; nothing if it goes on, or we gave it up. */
    Optional<LostException> loss() {
        End e = end.get();
        return Optional.ofNullable(e == null ? null : e.loss);
    }

    /**
     * Returns the election's key.
     *
     * @return the key
     */
    public String key() {
        return hold.id.key();
    }

    /**
     * Returns the fencing token: a positive number, larger for each later leader. It stays readable after the term.
     * Give it to everything that the leader writes to: what remembers the largest one and refuses smaller ones is
     * safe from a leader that does not know yet that it is none any more.
     *
     * @return the fence; 0, and no help, only where a daemon was configured to decide alone in an outage of its
     *     store
     */
    public long fence() {
        return hold.fence;
    }

    /**
     * Tells whether we lead at this very moment, by all that the daemon has stated. Once false, it stays false. Asks nobody, and
     * blocks no longer than {@link Lease#isValid} does.
     *
     * @return whether the term goes on; never true past the time for which the daemon has vouched
     */
    public boolean isValid() {
        return !over() && hold.held();
    }

    /**
     * Returns for how long we certainly lead as things stand; that rises with each renewal by the daemon. Blocks
     * no longer than {@link Lease#isValid} does.
     *
     * @return the time; zero when the term is not valid
     */
    public Duration remaining() {
        return over() ? Duration.ZERO : Holding.remaining(hold);
    }

    /**
     * Does nothing while the term is valid: for a loop that is to end with it. Asks nobody; it blocks, for half a
     * second at the most, only where this process was stopped and what arrived meanwhile has to be read first.
     *
     * @throws LostException if the term is over, with the reason {@code resigned} if we gave it up ourselves. From
     *     {@link Election.Listener#onElected} it may just be let pass: it does not end the campaign
     */
    public void check() {
        if (!over() && !hold.held()) {
            String reason = hold.lost;
            lose(reason == null ? hold.reasonAt(BootClock.SYSTEM.now()) : reason);
        }
        End e = end.get();
        if (e != null) {
            throw hold.loss(e.loss == null ? "resigned" : e.loss.reason());
        }
    }

    /**
     * Returns a stage that completes, normally, when the leadership is lost: with the loss, on the client's executor,
     * at once if that has happened. It never completes when we give the term up ourselves.
     *
     * @return a stage; it cannot be completed by others
     */
    public CompletionStage<LostException> lost() {
        return lost.minimalCompletionStage();
    }

    @Override
    public String toString() {
        return "Term[" + key() + ", fence " + fence() + (!over() && hold.owned() ? "" : ", over") + "]";
    }
}
