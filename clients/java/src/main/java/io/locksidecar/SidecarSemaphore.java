package io.locksidecar;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * A counting semaphore: made by {@link Sidecar#semaphore}. It has so many permits over all programs and hosts that use
 * the same store, and each is a {@link Lease} of its own.
 *
 * <pre>{@code
 * SidecarSemaphore slots = sidecar.semaphore("exports", 3);
 * try (Lease slot = slots.acquire()) {
 *     export(report);
 * }
 * }</pre>
 *
 * <p>The methods are called as those of {@link java.util.concurrent.Semaphore} are. What differs:
 *
 * <ul>
 *   <li><b>A permit is released by closing its lease</b>, by whoever has that, once: there is no {@code release()} that
 *       adds one. So a permit is never given back twice, nor by who has none.
 *   <li><b>A lost permit comes back by itself.</b> A crash of this process frees its permits at once, that of the
 *       host when their TTL is over. A holder that lives is told, as of any {@linkplain Lease#onLost loss}.
 *   <li><b>Every caller says how many there are</b>; nothing is set up before. Where callers say different numbers,
 *       each host goes by what was said to it last. A number that is lowered takes nothing away from who holds.
 *   <li><b>It is fair</b>: who waits is served in order of arrival on this host, and in turn with other hosts where the
 *       store keeps a queue. A try does not overtake them.
 *   <li>Permits are acquired one by one, and cannot be drained or counted: how many are available over all hosts would
 *       not be true any more when it is known. Several that are taken one after another by several holders can wait for
 *       each other for ever.
 * </ul>
 *
 * <p><b>Who holds it.</b> The lease, as with {@link Sidecar#lease(String)}. Nothing is re-entered: each acquire takes
 * one more permit, of the same thread and of the same {@link Owner} too, so that one who has all of them waits for
 * itself.
 *
 * <p>A semaphore and a lock of the same key have nothing to do with each other.
 *
 * <p><b>The fence</b> of a permit is different from every other's of this semaphore, but holders overlap, so that their
 * order says nothing: a resource cannot tell by it who came later.
 *
 * <p><b>What can go wrong</b> is what can with a {@link SidecarLock}. Besides, {@link UnsupportedException} where the
 * key's store has no semaphores, and {@link UnavailableException} in an outage of the store even where locks are
 * decided by one host alone then. Handles are cheap, and have no state.
 */
public final class SidecarSemaphore {
    private static final String LONGEST = "the longest wait that the daemon allows is over";

    private final Link link;
    private final Keys keys;
    private final LockOptions options;

    SidecarSemaphore(Link link, Keys keys, LockOptions options) {
        if (options.isShared()) {
            throw new IllegalArgumentException("shared is for locks: a permit of a semaphore has one holder");
        }
        this.link = link;
        this.keys = keys;
        this.options = options;
    }

    /**
     * Returns the semaphore's name.
     *
     * @return the key
     */
    public String key() {
        return keys.text(0);
    }

    /**
     * Returns how many permits there are, by what this handle says; not how many are free.
     *
     * @return the number
     */
    public int permits() {
        return keys.permits();
    }

    /**
     * Acquires a permit, and waits without bound, or until this thread is interrupted: then the request is withdrawn,
     * and nothing is held.
     *
     * @return the permit; to be closed
     * @throws InterruptedException if the thread is interrupted, before or in the wait
     * @throws NotAcquiredException if the daemon allows no wait that long
     * @throws LockException if it cannot be had for another reason
     */
    public Lease acquire() throws InterruptedException {
        return must(await(-1), LONGEST);
    }

    /**
     * Acquires a permit, and waits without bound. An interrupt is kept for later and does not end the wait.
     *
     * @return the permit; to be closed
     * @throws NotAcquiredException if the daemon allows no wait that long
     * @throws LockException if it cannot be had for another reason
     */
    public Lease acquireUninterruptibly() {
        Acquire a = begin(-1);
        a.getUninterruptibly();
        return must(a, LONGEST);
    }

    /**
     * Acquires a permit, and waits for it no longer than so long, or until this thread is interrupted.
     *
     * @param wait how long, counted in milliseconds, rounded up
     * @return the permit; to be closed
     * @throws InterruptedException if the thread is interrupted, before or in the wait; nothing is held then
     * @throws NotAcquiredException if none could be had in time
     * @throws LockException if it cannot be had for another reason
     */
    public Lease acquire(Duration wait) throws InterruptedException {
        return must(await(Times.wait(wait)), "no permit could be had within " + wait);
    }

    /**
     * Acquires a permit if one is free and nobody waits for it. Blocks no longer than the daemon needs to answer, and
     * no longer than the client's timeout. An interrupt is kept for later.
     *
     * @return the permit, to be closed; or nothing
     * @throws LockException if it cannot be told: {@link UnavailableException} without a daemon, at once
     */
    public Optional<Lease> tryAcquire() {
        Acquire a = begin(0);
        a.getUninterruptibly();
        return Optional.ofNullable(lease(a.outcome()));
    }

    /**
     * Acquires a permit, and waits for it no longer than so long, or until this thread is interrupted.
     *
     * @param wait how long, counted in milliseconds, rounded up; nothing or less is a try
     * @return the permit, to be closed; or nothing, also when the daemon allows no wait that long
     * @throws InterruptedException if the thread is interrupted, before or in the wait; nothing is held then
     * @throws LockException if it cannot be had for another reason
     */
    public Optional<Lease> tryAcquire(Duration wait) throws InterruptedException {
        return Optional.ofNullable(lease(await(Times.wait(wait)).outcome()));
    }

    /**
     * Acquires a permit without blocking, and waits for it without bound.
     *
     * @return see {@link #acquireAsync(Duration)}
     */
    public CompletableFuture<Lease> acquireAsync() {
        return future(-1);
    }

    /**
     * Acquires a permit without blocking, and waits for it no longer than so long. The future is as that of {@link
     * Sidecar#leaseAsync(String, Duration, LockOptions)}: cancelling it withdraws the request, and a permit that
     * crosses that is released.
     *
     * @param wait how long, counted in milliseconds, rounded up; nothing or less is a try
     * @return the permit to come
     */
    public CompletableFuture<Lease> acquireAsync(Duration wait) {
        return future(Times.wait(wait));
    }

    /**
     * Asks the daemon whether anybody holds a permit. It may have changed when this returns. Blocks until the daemon
     * has answered.
     *
     * @return whether at least one permit is held, here or on another host
     * @throws UnavailableException if there is no answer
     * @throws UnsupportedException if the key's store has no semaphores
     */
    public boolean isHeldByAnybody() {
        return link.inspect(keys, Codes.PERMIT).held();
    }

    /**
     * Asks the daemon for the state of the semaphore, and for the holders of its permits on any host. Blocks until the daemon
     * has answered, for which it may need several requests to the store.
     *
     * @return the state; it may have changed
     * @throws UnavailableException if there is no answer
     * @throws UnsupportedException if the key's store has no semaphores
     * @throws LimitException if too many such questions of this client are unanswered
     */
    public Inspection inspect() {
        return link.inspect(keys, Codes.PERMIT, Codes.HOLDERS);
    }

    private Acquire begin(long wait) {
        Acquire a = Holding.acquire(link, keys, options, wait, this, null);
        a.start();
        return a;
    }

    /** Makes an acquire and waits for its outcome. */
    private Acquire await(long wait) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        Acquire a = begin(wait);
        a.get();
        return a;
    }

    private CompletableFuture<Lease> future(long wait) {
        return new LeaseFuture<>(link, keys, options, wait, this::lease, Lease::releaseAsync);
    }

    private Lease must(Acquire a, String why) {
        Lease lease = lease(a.outcome());
        if (lease == null) {
            throw Holding.notAcquired(keys, a.outcome(), why);
        }
        return lease;
    }

    /** Makes a lease of an outcome; null if none was to be had. */
    private Lease lease(Object outcome) {
        Hold hold = Holding.hold(outcome, options);
        return hold == null ? null : new Lease(hold, false);
    }

    @Override
    public String toString() {
        return "SidecarSemaphore[" + key() + ", " + permits() + " permits]";
    }
}
