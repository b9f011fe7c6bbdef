package io.locksidecar;

import java.time.Duration;
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
 * <p><b>Who holds it.</b> The thread, platform or virtual, unless an {@link Owner} was named. A thread that holds
 * the lock may acquire it again, through any handle of the same key and client, and has to unlock as often. A
 * thread that ends without unlocking leaves the lock held, as with {@link
 * java.util.concurrent.locks.ReentrantLock}, until the client is closed. Handles are cheap, and it does not matter
 * which of them is used: they have no state.
 *
 * <p><b>When it is lost</b>, and somebody else may have it, {@link #isHeldByOwner} turns false, {@link #unlock}
 * throws {@link LostException}, and the listener of {@link LockOptions#onLost} is called. A lost lock that was
 * not unlocked can be acquired anew.
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

    SidecarLock(Link link, Keys keys, LockOptions options) {
        this.link = link;
        this.keys = keys;
        this.options = options;
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
     * @throws NotAcquiredException if the daemon allows no wait that long
     * @throws UpgradeException if this owner holds it shared
     * @throws LockException if it cannot be had for another reason
     */
    @Override
    public void lock() {
        Acquire a = begin(-1);
        must(Holding.hold(a.getUninterruptibly(), options));
    }

    /**
     * Acquires the lock, and waits without bound, or until this thread is interrupted: then the request is
     * withdrawn, and nothing is held. The client's connection is not touched by that.
     *
     * @throws InterruptedException if the thread is interrupted, before or in the wait
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
     * @throws UpgradeException if this owner holds it shared
     * @throws LockException if it cannot be told: {@link UnavailableException} without a daemon, at once
     */
    @Override
    public boolean tryLock() {
        return Holding.hold(begin(0).getUninterruptibly(), options) != null;
    }

    /**
     * Acquires the lock, and waits for it no longer than so long, or until this thread is interrupted.
     *
     * @param time how long, counted in milliseconds, rounded up; nothing or less is a try
     * @param unit the unit of time
     * @return whether it is held now; false, too, when the daemon allows no wait that long
     * @throws InterruptedException if the thread is interrupted, before or in the wait; nothing is held then
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
        return Holding.hold(begin(millis).get(), options);
    }

    private Acquire begin(long wait) {
        Acquire a = Holding.acquireByThread(link, keys, options, wait, null);
        a.start();
        return a;
    }

    /**
     * Releases the lock, or one of several acquires of it. Blocks until the store has confirmed, or until the
     * client's timeout, and cannot be interrupted. Nobody else's hold is ever released.
     *
     * <p>That the store has not confirmed in time, or that the connection ended just now, is not thrown: the work
     * was done under the lock, and the daemon goes on releasing.
     *
     * @throws IllegalMonitorStateException if this owner does not hold the lock; its cause is a {@link
     *     NotHeldException}
     * @throws LostException if it did hold the lock, and lost it: what was done under it may not have been
     *     protected
     */
    @Override
    public void unlock() {
        Hold hold = find();
        if (hold == null || !Holding.release(hold, options.isShared())) {
            NotHeldException why = notHeld();
            throw (IllegalMonitorStateException) new IllegalMonitorStateException(why.getMessage()).initCause(why);
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
     * Tells whether this owner, the current thread unless another was named, holds the key at this very moment,
     * in whatever mode, by all that the daemon has stated. Asks nobody and does not block.
     *
     * @return whether it is held
     */
    public boolean isHeldByOwner() {
        Hold hold = find();
        return hold != null && hold.owned();
    }

    /**
     * Asks the daemon whether anybody holds the lock. It may have changed when this returns. Blocks until the
     * daemon has answered.
     *
     * @return whether it is held, here or on another host
     * @throws UnavailableException if there is no answer
     */
    public boolean isLocked() {
        return link.ask(Codes.INSPECT, keys.all()[0].utf8()).number() != 0;
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
     * daemon. Does not block.
     *
     * @return the time; zero when this owner does not hold the lock
     */
    public Duration remaining() {
        return Holding.remaining(find());
    }

    /**
     * Renews the lock now, to end so long from now. Only a {@linkplain LockOptions#fixed() fixed} one needs that.
     * Blocks until the store has confirmed.
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

    private long owner() {
        return options.owner() != null ? options.owner().number() : Owner.ofThread();
    }

    /** Returns this owner's hold, one that was lost included; null without one. */
    private Hold find() {
        Hold.Id id = Hold.Id.lock(keys.text(0), owner());
        Conn conn = link.live();
        Hold hold = conn == null ? null : conn.find(id);
        return hold != null ? hold : link.lost(id);
    }

    private Hold mine() {
        Hold hold = find();
        if (hold == null) {
            throw notHeld();
        }
        return hold;
    }

    private NotHeldException notHeld() {
        return new NotHeldException("lock \"" + key() + "\" is not held by "
                + (options.owner() != null ? options.owner() : Thread.currentThread()));
    }

    @Override
    public String toString() {
        return "SidecarLock[" + key() + (options.isShared() ? ", shared" : "")
                + (isHeldByOwner() ? ", held by this owner]" : "]");
    }
}
