package io.locksidecar;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.function.Consumer;

/**
 * One acquire of a lock, or one permit of a semaphore, which is held until {@link #close}.
 *
 * <pre>{@code
 * try (Lease lease = sidecar.lease("order:42")) {
 *     charge(order, lease.fence());
 * }
 * }</pre>
 *
 * <p>A lease belongs to no thread: any thread may use and close it. It is its own owner, so a second lease of the same
 * key waits for the first. If an {@link Owner} was named, all its leases of one key are one hold, which ends with the
 * last of them. Permits of a {@link SidecarSemaphore} are always separate; apart from that, the text below also applies
 * to them.
 *
 * <p>A thread that would wait for a lease that it has acquired itself gets {@link AlreadyHeldException} instead, because
 * usually no other thread would close it. If another thread does, {@linkplain LockOptions#owner name an owner} for each
 * lease, or use {@link Sidecar#leaseAsync}: these wait. If the lease is lost, that thread gets {@link LostException} until the
 * lease is closed, or thrown away and garbage-collected.
 *
 * <p>A lease that is never closed stays held until the client is closed, its process ends or it is lost. It is
 * not released when it becomes unreachable: that can happen while the program still works under the lease.
 */
public final class Lease implements AutoCloseable {
    private final Hold hold;
    private volatile boolean closed; // written under this
    private boolean shared; // guarded by this

    Lease(Hold hold, boolean shared) {
        this.hold = hold;
        this.shared = shared;
        hold.leased(this);
    }

    /**
     * Returns the name of the lock or semaphore.
     *
     * @return the key
     */
    public String key() {
        return hold.id.key();
    }

    /**
     * Returns the fencing token: a positive number, larger for each later holder of the key. It stays readable after
     * the lock was lost or released. A resource that remembers the largest fence it has seen, and refuses smaller ones,
     * is safe from holders that do not know yet that they have lost the lock. The fence of a permit differs from the
     * fences of all other permits. Its order means nothing, because holders overlap.
     *
     * @return the fence; 0, and no help, only for a lock that a daemon has granted alone in an outage of its store, as
     * configured
     */
    public long fence() {
        return hold.fence;
    }

    /**
     * Tells whether the lock is held now, by everything that the daemon has stated. Once false, it stays false. Sends
     * nothing, and takes well under a microsecond while the lock is held. It blocks only if this process was stopped
     * and messages that have arrived must be read first, and then for at most half a second.
     *
     * @return whether it is held
     */
    public boolean isValid() {
        return !closed && hold.held();
    }

    /**
     * Returns for how long the lock is certainly held as things stand. Unless it is {@linkplain
     * LockOptions#fixed() fixed}, that rises again with each renewal by the daemon. Blocks no longer than
     * {@link #isValid} does.
     *
     * @return the time; zero when the lease is not valid
     */
    public Duration remaining() {
        return closed ? Duration.ZERO : Holding.remaining(hold);
    }

    /**
     * Returns the time until the lock ends by itself: a {@linkplain LockOptions#fixed() fixed} one, or any where the daemon
     * limits how long a lock may be held. It can be longer than {@link #remaining}, which the daemon extends until then.
     * Blocks no longer than {@link #isValid} does.
     *
     * @return the time, zero when the lease is no longer valid; empty if the lock does not end by itself
     */
    public Optional<Duration> fixedEnd() {
        return Holding.untilEnd(hold).map(left -> closed ? Duration.ZERO : left);
    }

    /**
     * Returns a stage that completes, normally, when the lock is lost: with the loss, on the client's executor,
     * at once if that has happened. It never completes when the lease is closed while it is held, nor when the
     * client is closed.
     *
     * @return a new stage; it cannot be completed by others
     */
    public CompletionStage<LostException> onLost() {
        String lost;
        CompletableFuture<LostException> stage;
        hold.conn.mu.lock();
        try {
            stage = hold.stage();
            lost = hold.lost;
        } finally {
            hold.conn.mu.unlock();
        }
        if (lost != null && !lost.equals("closed")) {
            hold.conn.link().tell(stage::complete, hold.loss(lost));
        }
        return stage.thenApply(loss -> hold.loss(loss.reason())).minimalCompletionStage(); // an exception for each caller
    }

    /**
     * Renews the lock now, to end its own TTL from now, but never sooner than before. Only a {@linkplain
     * LockOptions#fixed() fixed} lock needs this. Blocks until the store has confirmed.
     *
     * @throws LostException if it was lost
     * @throws NotHeldException if it was closed
     * @throws UnavailableException if the store does not confirm: what was known before still stands
     */
    public void extend() {
        extend(0);
    }

    /**
     * Renews the lock now, to end ttl from now, but never sooner than before. Blocks until the store has confirmed.
     *
     * @param ttl positive; counted in milliseconds
     * @throws LostException if it was lost
     * @throws NotHeldException if it was closed
     * @throws InvalidException if the daemon allows no such TTL
     * @throws UnavailableException if the store does not confirm: what was known before still stands
     */
    public void extend(Duration ttl) {
        extend(Times.millis(Times.positive(ttl, "a TTL")));
    }

    private void extend(long ttl) {
        check();
        Holding.extend(hold, ttl);
    }

    /**
     * Turns an exclusive lease into a shared one, without releasing the lock in between. A shared lease does not
     * change. The fence stays. Blocks until the daemon has answered, which it does at once.
     *
     * @throws LostException if it was lost
     * @throws NotHeldException if it was closed
     * @throws InvalidException if it is a permit
     */
    public void downgrade() {
        if (hold.isPermit()) {
            throw new InvalidException(hold + ": a permit cannot be downgraded");
        }
        Object left;
        hold.held();
        synchronized (this) { // no wait in it
            check();
            if (shared) {
                return;
            }
            left = hold.conn.releases.downgrade(hold, null);
            shared = left != Releases.Left.LOST && left != Releases.Left.NOT_OWNED; // else it is counted as before
        }
        Holding.downgraded(hold, left);
    }

    private void check() {
        if (closed) {
            throw new NotHeldException("the lease of \"" + key() + "\" is closed");
        }
    }

    /**
     * Releases the lock. A second call does nothing. Blocks until the store has confirmed, or until the client's
     * timeout, and cannot be interrupted. No other owner's hold is ever released.
     *
     * <p>If the store has not confirmed in time, or the connection has just ended, no exception is thrown: the work was
     * done under the lock, and the daemon continues the release. (To hear of it, use {@link #releaseAsync}.)
     *
     * @throws LostException if the lock was lost before: what was done under it may not have been protected. A
     *     {@code try} with resources adds it to an exception of its body, as a suppressed one
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        hold.held();
        Object left = end(null);
        if (left != null) {
            Holding.released(hold, left);
        }
    }

    /** Sends the release; null if that was done before. */
    private synchronized Object end(Consumer<Call> then) {
        if (closed) {
            return null;
        }
        closed = true;
        return hold.conn.releases.release(hold, shared, then);
    }

    /**
     * Releases the lock without waiting, once; {@link #close} does nothing after it.
     *
     * @return completes, on the client's executor, when the store has confirmed; exceptionally with {@link
     *     LostException} if the lock was lost before, and {@link UnconfirmedException} if the store does not
     *     confirm. Cancelling it has no effect on the release
     */
    public CompletableFuture<Void> releaseAsync() {
        if (closed || !Holding.doubtful(hold)) {
            return Holding.async(hold, this::end);
        }
        Link link = hold.conn.link();
        CompletableFuture<Void> read = new CompletableFuture<>();
        hold.conn.whenCaughtUp(() -> link.execute(() -> read.complete(null)));
        return read.thenCompose(x -> Holding.async(hold, this::end));
    }

    @Override
    public String toString() {
        return "Lease[" + key() + ", fence " + fence() + (!closed && hold.owned() ? "" : ", not valid") + "]";
    }
}
