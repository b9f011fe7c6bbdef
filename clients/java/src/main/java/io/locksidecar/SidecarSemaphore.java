package io.locksidecar;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * A counting semaphore, made by {@link Sidecar#semaphore}. Its permits are counted across all programs and hosts that use
 * the same store, and each permit is a {@link Lease}.
 *
 * <pre>{@code
 * SidecarSemaphore slots = sidecar.semaphore("exports", 3);
 * try (Lease slot = slots.acquire()) {
 *     export(report);
 * }
 * }</pre>
 *
 * <p>The methods have the names of {@link java.util.concurrent.Semaphore}. These are the differences:
 *
 * <ul>
 *   <li><b>A permit is released by closing its lease.</b> Any thread may close it, and only the first time counts.
 *       There is no {@code release()} that adds a permit. So no permit is released twice, or by a program that has
 *       none.
 *   <li><b>A lost permit becomes free by itself.</b> If this process ends, its permits are free at once. If the host
 *       fails, they are free when their TTL is over. A holder is told of the {@linkplain Lease#onLost loss}, as for a
 *       lock.
 *   <li><b>Every caller gives the number of permits</b>; nothing is set up before. If callers give different numbers,
 *       each host uses the number that it received last. A lower number takes no permit away from its holder.
 *   <li><b>It is fair.</b> Waiters are served in order of arrival on this host, and in turns with other hosts if the
 *       store keeps a queue. A try does not overtake them.
 *   <li>Permits are acquired one by one, and cannot be drained or counted, because a count across all hosts would be
 *       outdated at once. Holders that acquire several permits one after the other can wait for each other forever.
 * </ul>
 *
 * <p><b>The owner</b> of a permit is the lease, as with {@link Sidecar#lease(String)}. There is no re-entry: each
 * acquire takes one more permit, also with the same thread or {@link Owner}. So a holder of all permits would wait for
 * itself.
 *
 * <p>A semaphore and a lock of the same key are independent.
 *
 * <p><b>The fence</b> of a permit differs from the fences of all other permits of the semaphore. Holders overlap, so
 * the order of fences means nothing, and a resource cannot use it to find the later holder.
 *
 * <p><b>Errors</b> are as for a {@link SidecarLock}. In addition, there is {@link LockException.Code#UNSUPPORTED} if the key's
 * store has no semaphores. In an outage of the store, permits are always {@linkplain UnavailableException unavailable},
 * even if a host may then grant locks alone. Handles are cheap, and have no state.
 */
public final class SidecarSemaphore {
    private final Link link;
    private final Keys keys;
    private final LockOptions options;

    SidecarSemaphore(Link link, Keys keys, LockOptions options) {
        if (options.shared) {
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
        return keys.text[0];
    }

    /**
     * Returns the number of permits that this handle gives, not the number of free permits.
     *
     * @return the number
     */
    public int permits() {
        return keys.permits;
    }

    /**
     * Acquires a permit, and waits without bound, or until this thread is interrupted: then the request is withdrawn,
     * and nothing is held.
     *
     * @return the permit; to be closed
     * @throws InterruptedException if the thread is interrupted, before or in the wait
     */
    public Lease acquire() throws InterruptedException {
        return begin(-1).awaited().must();
    }

    /**
     * Acquires a permit, and waits without bound. An interrupt is kept for later and does not end the wait.
     *
     * @return the permit; to be closed
     */
    public Lease acquireUninterruptibly() {
        return begin(-1).awaitedUninterruptibly().must();
    }

    /**
     * Acquires a permit, and waits for it no longer than this, or until this thread is interrupted.
     *
     * @param wait the longest wait, counted in milliseconds, rounded up
     * @return the permit; to be closed
     * @throws InterruptedException if the thread is interrupted, before or in the wait; nothing is held then
     * @throws NotAcquiredException if no permit was free in time
     */
    public Lease acquire(Duration wait) throws InterruptedException {
        return begin(LockOptions.wait(wait)).awaited().must();
    }

    /**
     * Acquires a permit if one is free and no other owner waits for it. Blocks no longer than the daemon needs to answer,
     * and no longer than the client's timeout. An interrupt is kept for later.
     *
     * @return the permit, to be closed; or nothing
     */
    public Optional<Lease> tryAcquire() {
        return Optional.ofNullable(begin(0).awaitedUninterruptibly().lease());
    }

    /**
     * Acquires a permit, and waits for it no longer than this, or until this thread is interrupted.
     *
     * @param wait the longest wait, counted in milliseconds, rounded up; with 0 or less, it does not wait
     * @return the permit, to be closed; or nothing, also when the daemon allows no wait that long
     * @throws InterruptedException if the thread is interrupted, before or in the wait; nothing is held then
     */
    public Optional<Lease> tryAcquire(Duration wait) throws InterruptedException {
        return Optional.ofNullable(begin(LockOptions.wait(wait)).awaited().lease());
    }

    /**
     * Acquires a permit without blocking, and waits for it without bound.
     *
     * @return see {@link #acquireAsync(Duration)}
     */
    public CompletableFuture<Lease> acquireAsync() {
        return new Acquire.Future(link, keys, options, -1);
    }

    /**
     * Acquires a permit without blocking, and waits for it no longer than this. The future is as for {@link
     * Sidecar#leaseAsync(String, Duration, LockOptions)}.
     *
     * @param wait the longest wait, counted in milliseconds, rounded up; with 0 or less, it does not wait
     * @return the permit to come
     */
    public CompletableFuture<Lease> acquireAsync(Duration wait) {
        return new Acquire.Future(link, keys, options, LockOptions.wait(wait));
    }

    private Acquire begin(long wait) {
        return Acquire.of(link, keys, options, wait, this, Owner.ofThread(), null, null);
    }

    /**
     * Asks the daemon whether any permit is held. The answer may be outdated when this returns. Blocks until the daemon
     * has answered.
     *
     * @return whether at least one permit is held, here or on another host
     */
    public boolean isHeldByAnybody() {
        return link.inspect(keys, Codes.PERMIT).held();
    }

    /**
     * Asks the daemon for the state of the semaphore, and for the holders of its permits on any host. Blocks until the daemon
     * has answered, for which it may need several requests to the store.
     *
     * @return the state; it may have changed
     */
    public Inspection inspect() {
        return link.inspect(keys, Codes.PERMIT, Codes.HOLDERS);
    }

    /**
     * Ends permits of the semaphore, of any client on this host, like {@link Sidecar#forceUnlock(String)}.
     *
     * @param fence the fence of the permit; 0 for all permits
     * @return the number of permits that were ended
     * @throws LockException with the code {@link LockException.Code#DENIED} if this user may not do that
     */
    public long forceUnlock(long fence) {
        return link.forceUnlock(keys, Codes.PERMIT, fence);
    }

    @Override
    public String toString() {
        return "SidecarSemaphore[" + key() + ", " + permits() + " permits]";
    }
}
