package io.locksidecar;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A distributed lock as a {@link Lock}: made by {@link Sidecar#lock}, and held by one owner over all programs and
 * hosts that use the same store.
 *
 * <pre>{@code
 * Lock lock = sidecar.lock("order:42");
 * lock.lock();
 * try {
 *     charge(order);
 * } finally {
 *     lock.unlock();
 * }
 * }</pre>
 *
 * <p><b>The owner</b> is the thread, platform or virtual, together with this handle. The thread may acquire the lock
 * again through this handle, and must unlock it as often. Another handle of the key is another owner: if it would wait for
 * this one in the same thread, it throws {@link AlreadyHeldException}, and its {@link #tryLock()} returns false. With {@link
 * LockOptions#ownedByThread} the thread alone is the owner, and with {@link LockOptions#owner} an {@link Owner}; then any
 * handle can be used. A thread that ends without unlocking leaves the lock held until the client is closed, as with {@link
 * java.util.concurrent.locks.ReentrantLock}. Handles are cheap.
 *
 * <p><b>When it is lost</b>, and another owner may have it, {@link #isHeldByOwner} turns false, the listener of {@link
 * LockOptions#onLost} is called, and {@link #unlock} throws {@link LostException}. Until the owner has unlocked the lost
 * lock as often as it had acquired it, every acquire throws {@link LostException}, too: an inner scope must not get a
 * new lock while an outer scope still works under the old one. The same applies to other handles and leases in the same
 * thread, where they would get {@link AlreadyHeldException} if the lock were still held. After that it can be acquired again.
 * A lost lock whose handle was thrown away cannot be unlocked: it blocks its thread only until the handle is
 * garbage-collected.
 *
 * <p><b>What can go wrong.</b> Every acquire may throw a {@link LockException} that is not checked: {@link
 * UnavailableException} when there is no daemon (after two seconds, in case it just restarts, or at once if the
 * wait is shorter) or no store, and the others of the package's table. An acquire that throws has acquired
 * nothing. A wait survives the restart of the daemon: it asks the next one.
 */
public final class SidecarLock implements Lock {
    private final Link link;
    private final Keys keys;
    private final LockOptions options;
    private final Handle handle;

    SidecarLock(Link link, Keys keys, LockOptions options, Handle handle) {
        this.link = link;
        this.keys = keys;
        this.options = options;
        this.handle = handle;
    }

    /**
     * Returns the lock's name.
     *
     * @return the key
     */
    public String key() {
        return keys.text(0);
    }

    /**
     * Acquires the lock, and waits without bound. An interrupt is kept for later and does not end the wait.
     *
     * @throws LostException if this owner, or another handle of this thread, lost it and has not unlocked it since
     * @throws AlreadyHeldException if this thread holds it through another handle
     * @throws NotAcquiredException if the daemon allows no wait that long
     * @throws UpgradeException if this owner holds it shared
     * @throws LockException if it cannot be had for another reason
     */
    @Override
    public void lock() {
        must(acquire(-1, Acquire::getUninterruptibly));
    }

    /**
     * Acquires the lock, and waits without bound, or until this thread is interrupted: then the request is
     * withdrawn, and nothing is held. The client's connection is not touched by that.
     *
     * @throws InterruptedException if the thread is interrupted, before or in the wait
     * @throws LostException if this owner, or another handle of this thread, lost it and has not unlocked it since
     * @throws AlreadyHeldException if this thread holds it through another handle
     * @throws NotAcquiredException if the daemon allows no wait that long
     * @throws UpgradeException if this owner holds it shared
     * @throws LockException if it cannot be had for another reason
     */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        must(await(-1));
    }

    private void must(Hold hold) {
        if (hold == null) {
            throw new NotAcquiredException("lock \"" + key() + "\": the longest wait that the daemon allows is over");
        }
    }

    /**
     * Acquires the lock if it is free and nobody waits for it. Blocks no longer than the daemon needs to answer,
     * and no longer than the client's timeout.
     *
     * @return whether it is held now
     * @throws LostException if this owner, or another handle of this thread, lost it and has not unlocked it since
     * @throws UpgradeException if this owner holds it shared
     * @throws LockException if it cannot be told: {@link UnavailableException} without a daemon, at once
     */
    @Override
    public boolean tryLock() {
        return acquire(0, Acquire::getUninterruptibly) != null;
    }

    /**
     * Acquires the lock, and waits for it no longer than so long, or until this thread is interrupted.
     *
     * @param time how long, counted in milliseconds, rounded up; nothing or less is a try
     * @param unit the unit of time
     * @return whether it is held now; false, too, when the daemon allows no wait that long
     * @throws InterruptedException if the thread is interrupted, before or in the wait; nothing is held then
     * @throws LostException if this owner, or another handle of this thread, lost it and has not unlocked it since
     * @throws AlreadyHeldException if this thread holds it through another handle, and this is no try
     * @throws UpgradeException if this owner holds it shared
     * @throws LockException if it cannot be had for another reason
     */
    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return await(Times.wait(time, unit)) != null;
    }

    private Hold await(long millis) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        return acquire(millis, Acquire::get);
    }

    /** A way to wait for the outcome of an acquire. */
    private interface Waiting<E extends Exception> {
        Object outcome(Acquire a) throws E;
    }

    /** Acquires as this owner; null if another owner has the lock. */
    private <E extends Exception> Hold acquire(long wait, Waiting<E> waiting) throws E {
        Long owner = owner();
        boolean begun = owner == null;
        Hold hold = null;
        try {
            Acquire a = options.owner() != null || options.isByThread()
                    ? Holding.acquire(link, keys, options, wait, handle.ref(), null)
                    : Holding.acquire(link, keys, options, wait, handle, begun ? handle.begin() : owner);
            a.start();
            hold = Holding.hold(waiting.outcome(a), options);
            if (hold != null && options.owner() == null && !options.isByThread()) {
                hold.by = handle.ref();
            }
            return hold;
        } finally {
            if (begun && hold == null) {
                handle.end();
            }
        }
    }

    /**
     * Releases the lock, or one of several acquires of it. Blocks until the store has confirmed, or until the client's
     * timeout, and cannot be interrupted. No other owner's hold is ever released.
     *
     * <p>If the store has not confirmed in time, or the connection has just ended, no exception is thrown: the work was
     * done under the lock, and the daemon continues the release.
     *
     * @throws IllegalMonitorStateException if this owner does not hold the lock; its cause is a {@link
     *     NotHeldException}
     * @throws LostException if it did hold the lock, and lost it: what was done under it may not have been
     *     protected
     */
    @Override
    public void unlock() {
        Hold hold = find();
        try {
            if (hold == null || !Holding.release(hold, options.isShared())) {
                NotHeldException why = notHeld();
                throw (IllegalMonitorStateException) new IllegalMonitorStateException(why.getMessage()).initCause(why);
            }
        } finally {
            if (hold != null && hold.over && (hold.lost == null || find() == null)) {
                handle.end(); // it was released, or lost and unlocked as often as it was acquired
            }
        }
    }

    /**
     * Not supported: a condition would have to be told of in other programs.
     *
     * @return nothing
     * @throws UnsupportedOperationException always
     */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a distributed lock has no conditions");
    }

    /**
     * Tells whether this owner holds the key now, in any mode, by the validity that the daemon has stated. A lock whose
     * validity has run out is lost from then on. Sends nothing, and blocks no longer than {@link Lease#isValid} does.
     *
     * @return whether it is held
     */
    public boolean isHeldByOwner() {
        Hold hold = find();
        return hold != null && hold.held();
    }

    /**
     * Returns how often this owner has acquired the lock in this handle's mode, exclusive or shared, and not unlocked
     * it since. It also counts for a lost lock. Does not block.
     *
     * @return the number of unlocks that are due
     */
    public int holdCount() {
        Hold hold = find();
        return hold == null ? 0 : hold.count(options.isShared());
    }

    /**
     * Asks the daemon whether the lock is held. The answer may be outdated when this returns. Blocks until the daemon
     * has answered.
     *
     * @return whether it is held, here or on another host
     * @throws UnavailableException if there is no answer
     */
    public boolean isLocked() {
        return link.inspect(keys).held();
    }

    /**
     * Asks the daemon for the state of the lock, and for its holders on any host. Blocks until the daemon has answered, for
     * which it may need several requests to the store.
     *
     * @return the state; it may have changed
     * @throws UnavailableException if there is no answer
     * @throws LimitException if too many such questions of this client are unanswered
     */
    public Inspection inspect() {
        return link.inspect(keys, Codes.EXCLUSIVE, Codes.HOLDERS);
    }

    /**
     * Returns the fencing token: a positive number, larger for each later holder of the key. It stays readable
     * after the lock was lost, until the unlock: that is when it matters. See the package's description for its
     * use.
     *
     * @return the fence; 0, and no help, only where a daemon was configured to decide alone in an outage of its
     *     store
     * @throws NotHeldException if this owner does not hold the lock
     */
    public long fence() {
        return mine().fence;
    }

    /**
     * Returns for how long the lock is certainly held as things stand; that rises with each renewal by the
     * daemon. Blocks no longer than {@link Lease#isValid} does.
     *
     * @return the time; zero when this owner does not hold the lock
     */
    public Duration remaining() {
        return Holding.remaining(find());
    }

    /**
     * Returns the time until the lock ends by itself: a {@linkplain LockOptions#fixed() fixed} one, or any where the daemon
     * limits how long a lock may be held. It can be longer than {@link #remaining}, which the daemon extends until then.
     * Blocks no longer than {@link Lease#isValid} does.
     *
     * @return the time, zero after the end or a loss; empty if the lock does not end by itself, or is not held
     */
    public Optional<Duration> fixedEnd() {
        return Holding.untilEnd(find());
    }

    /**
     * Renews the lock now, to end ttl from now, but never sooner than before. Only a {@linkplain LockOptions#fixed() fixed}
     * lock needs this. Blocks until the store has confirmed.
     *
     * @param ttl positive; counted in milliseconds
     * @throws LostException if it was lost
     * @throws NotHeldException if this owner does not hold the lock
     * @throws InvalidException if the daemon allows no such TTL
     * @throws UnavailableException if the store does not confirm: what was known before still stands
     */
    public void extend(Duration ttl) {
        Holding.extend(mine(), Times.millis(Times.positive(ttl, "a TTL")));
    }

    /** Returns the number of owners of this handle. */
    int owners() {
        return handle.owners();
    }

    /** Returns the owner's number; null if the thread has acquired nothing through this handle. */
    private Long owner() {
        return options.owner() != null ? (Long) options.owner().number()
                : options.isByThread() ? (Long) Owner.ofThread() : handle.owner();
    }

    /** Returns this owner's hold, one that was lost and not unlocked included; null without one. */
    private Hold find() {
        Long owner = owner();
        return owner == null ? null : link.hold(Hold.Id.lock(keys.text(0), owner));
    }

    private Hold mine() {
        Hold hold = find();
        if (hold == null) {
            throw notHeld();
        }
        return hold;
    }

    private NotHeldException notHeld() {
        Conn conn = link.live();
        Hold other = conn == null || options.owner() != null ? null : conn.inThread(keys.text(0));
        return new NotHeldException("lock \"" + key() + "\" is not held by "
                + (options.owner() != null ? options.owner() : Thread.currentThread())
                + (options.owner() != null || options.isByThread() ? "" : " through " + handle)
                + (other == null ? "" : ", but by another handle (" + other.site.handle() + ")"));
    }

    @Override
    public String toString() {
        Hold hold = find();
        return "SidecarLock[" + key() + (options.isShared() ? ", shared" : "")
                + (hold != null && hold.owned() ? ", held by this owner]" : "]");
    }
}
