package io.locksidecar;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.atomic.AtomicReference;

/**
 * One time of being the leader of an {@link Election}: from the election to the loss of the lock, or to its end by
 * {@link Election#resign}, {@link Election#stop} or an exception. Once it is over, it stays over. Any thread may use
 * it.
 */
public final class Term {
    /** The end of a term: a loss, or null if this candidate ended it. */
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

    /** Begins to listen for the loss of the hold. */
    void watch() {
        hold.conn.mu.lock();
        try (hold.conn.mu) {
            hold.watcher = () -> lose("gone");
        }
        if (hold.over) { // its end may have been before
            lose("gone");
        }
    }

    /** Ends the term for the reason of the hold's loss, or for another one without it. */
    private void lose(String otherwise) {
        String reason = hold.lost != null ? hold.lost : otherwise;
        LostException loss = hold.loss(reason);
        if (end.compareAndSet(null, new End(loss))) {
            wake.run();
            hold.conn.link.tell(lost::complete, hold.loss(reason));
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

    /** Returns the loss that ended it; empty if it continues, or this candidate ended it. */
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
        return hold.id.key;
    }

    /**
     * Returns the fencing token: a positive number, larger for each later leader. It stays readable after the term.
     * Send it with each write of the leader. A resource that remembers the largest fence and refuses smaller ones is
     * safe from a leader that does not know yet that its term is over.
     *
     * @return the fence; 0, and no protection, only if the daemon has granted the lock alone during an outage of its store,
     *     as configured
     */
    public long fence() {
        return hold.fence;
    }

    /**
     * Tells whether this candidate leads now, by everything that the daemon has stated. Once false, it stays false.
     * Sends nothing, and blocks no longer than {@link Lease#isValid} does.
     *
     * @return whether the term continues; never true past the time that the daemon has stated
     */
    public boolean isValid() {
        return !over() && hold.held();
    }

    /**
     * Returns for how long this candidate certainly leads. The value rises with each renewal by the
     * daemon. Blocks no longer than {@link Lease#isValid} does.
     *
     * @return the time; zero when the term is not valid
     */
    public Duration remaining() {
        return over() ? Duration.ZERO : Duration.ofNanos(hold.remaining());
    }

    /**
     * Does nothing while the term is valid. It is for a loop that must end with the term. Sends nothing. It blocks only
     * if this process was stopped and messages that have arrived must be read first, and then for at most half a
     * second.
     *
     * @throws LostException if the term is over, with the reason {@code resigned} if this candidate ended it. {@link
     * Election.Listener#onElected} may let it pass: it does not end the campaign
     */
    public void check() {
        if (!over() && !hold.held()) {
            lose(hold.reasonAt(BootClock.SYSTEM.now()));
        }
        End e = end.get();
        if (e != null) {
            throw hold.loss(e.loss == null ? "resigned" : e.loss.reason());
        }
    }

    /**
     * Returns a stage that completes, normally, when the leadership is lost: with the loss, on the client's executor,
     * at once if that has happened. It never completes if this candidate ends the term itself.
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
