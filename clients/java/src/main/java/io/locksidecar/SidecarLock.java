package io.locksidecar;

import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A distributed lock as a {@link Lock}: made by {@link Sidecar#lock}, and held by one owner across all programs and
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
 * this one in the same thread, it throws the code {@link LockException.Code#ALREADY_HELD}, and its {@link #tryLock()} returns
 * false. With {@link LockOptions#ownedByThread} the thread alone is the owner, and with {@link LockOptions#owner} an {@link
 * Owner}; then any handle can be used. A thread that ends without unlocking leaves the lock held until the client is closed,
 * as with {@link java.util.concurrent.locks.ReentrantLock}. Handles are cheap.
 *
 * <p><b>When it is lost</b>, and another owner may have it, {@link #isHeldByOwner} turns false, the listener of {@link
 * LockOptions#onLost} is called, and {@link #unlock} and {@link #check} throw {@link LostException}. Until the owner has
 * unlocked the lost lock as often as it had acquired it, every acquire throws {@link LostException}, too: an inner scope must
 * not get a new lock while an outer scope still works under the old one. The same applies to other handles and leases in the
 * same thread. After that the lock can be acquired again. A lost lock whose handle was thrown away cannot be unlocked: it
 * blocks its thread only until the handle is garbage-collected.
 *
 * <p><b>What can go wrong.</b> Every acquire may throw a {@link LockException}, which is not checked. After that, nothing was
 * acquired. {@link UnavailableException} means that there is no daemon (after two seconds, in case it is restarting, or at
 * once if the wait is shorter) or no store. {@link NotAcquiredException} means that the daemon allows no wait that long, or
 * that this owner holds the lock shared and asks for it exclusively. A wait survives the restart of the daemon: it asks the
 * next one.
 */
public final class SidecarLock implements Lock {
    private final Link link;
    private final Keys keys;
    private final LockOptions options;
    final Handle handle;

    SidecarLock(Link link, Keys keys, LockOptions options, Handle handle) {
        this.link = link;
        this.keys = keys;
        this.options = options;
        this.handle = handle;
    }

    /** The owners of a lock, or of both locks of a pair: each thread that acquires through it is a separate owner. */
    static final class Handle {
        private final Ref ref;
        /** Owners by thread, while they hold the lock, acquire it, or have a lost hold that they have not unlocked. */
        final Map<Long, Long> owners = new ConcurrentHashMap<>(1);

        Handle(String kind) {
            this.ref = new Ref(this, kind);
        }
    }

    /** Names a handle in messages, without keeping it in memory. */
    private static final class Ref extends WeakReference<Handle> {
        private final String kind;

        private Ref(Handle handle, String kind) {
            super(handle);
            this.kind = kind;
        }

        @Override
        public String toString() {
            return kind + "@" + Integer.toHexString(System.identityHashCode(this));
        }
    }

    /**
     * Returns the lock's name.
     *
     * @return the key
     */
    public String key() {
        return keys.text[0];
    }

    /**
     * Tells whether this is a shared lock, such as the read lock of a {@link SidecarReadWriteLock}.
     *
     * @return false if it is exclusive
     */
    public boolean isShared() {
        return options.shared;
    }

    /** Acquires the lock, and waits without bound. An interrupt is kept for later and does not end the wait. */
    @Override
    public void lock() {
        acquire(-1, Acquire::awaitedUninterruptibly);
    }

    /**
     * Acquires the lock, and waits without bound, or until this thread is interrupted: then the request is
     * withdrawn, and nothing is held. The client's connection is not affected by that.
     *
     * @throws InterruptedException if the thread is interrupted, before or in the wait
     */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        acquire(-1, Acquire::awaited);
    }

    /**
     * Acquires the lock if it is free and no other owner waits for it. Blocks no longer than the daemon needs to answer,
     * and no longer than the client's timeout.
     *
     * @return whether it is held now
     */
    @Override
    public boolean tryLock() {
        return acquire(0, Acquire::awaitedUninterruptibly);
    }

    /**
     * Acquires the lock, and waits for it no longer than this time, or until this thread is interrupted.
     *
     * @param time the longest wait, counted in milliseconds, rounded up; with 0 or less, it does not wait
     * @param unit the unit of time
     * @return whether it is held now; false, too, when the daemon allows no wait that long
     * @throws InterruptedException if the thread is interrupted, before or in the wait; nothing is held then
     */
    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return acquire(LockOptions.wait(time, unit), Acquire::awaited);
    }

    private boolean ownsByHandle() {
        return options.owner == null && !options.byThread;
    }

    /** A way to wait for the outcome of an acquire. */
    private interface Waiting<E extends Exception> {
        Acquire outcome(Acquire a) throws E;
    }

    /** Acquires as this owner; false if another owner has the lock. A wait without bound (-1) throws instead. */
    private <E extends Exception> boolean acquire(long wait, Waiting<E> waiting) throws E {
        Long thread = Owner.ofThread();
        if (!ownsByHandle()) {
            return got(waiting, wait, thread, null) != null;
        }
        Long owner = handle.owners.get(thread);
        boolean begun = owner == null;
        Hold hold = null;
        try {
            if (begun) {
                owner = Owner.next();
                handle.owners.put(thread, owner);
            }
            hold = got(waiting, wait, thread, owner);
            if (hold != null) {
                hold.by = handle.ref;
            }
            return hold != null;
        } finally {
            if (begun && hold == null) {
                handle.owners.remove(thread);
            }
        }
    }

    private <E extends Exception> Hold got(Waiting<E> waiting, long wait, Long thread, Long handleOwner) throws E {
        Acquire a = waiting.outcome(Acquire.of(link, keys, options, wait, handle.ref, thread, handleOwner, null));
        Hold hold = a.hold();
        if (hold == null && wait < 0) {
            throw a.notAcquired();
        }
        return hold;
    }

    /**
     * Releases one acquire; the last one releases the lock. Waits for the store as {@link LockOptions#confirm} says. Cannot
     * be interrupted. No other owner's hold is ever released.
     *
     * <p>By default it blocks until the store has confirmed, or until the client's timeout. If the store has not confirmed in
     * time, or the connection has just ended, no exception is thrown: the work was done under the lock, and the daemon
     * continues the release.
     *
     * @throws IllegalMonitorStateException if this owner does not hold the lock; its cause is a {@link
     *     NotHeldException}
     * @throws LostException if it did hold the lock, and lost it: what was done under it may not have been
     *     protected
     */
    @Override
    public void unlock() {
        release(options.releaseFlags(link));
    }

    /**
     * Releases the lock like {@link #unlock()}, but does not wait until the store has confirmed; see {@link
     * LockOptions#confirm}.
     *
     * @throws IllegalMonitorStateException if this owner does not hold the lock
     * @throws LostException if it has lost it
     */
    public void unlockUnconfirmed() {
        release(Codes.QUIET);
    }

    /**
     * Releases the lock like {@link #unlock()}, and frees it at once even if it has a time to {@linkplain LockOptions#keep
     * keep}.
     *
     * @throws IllegalMonitorStateException if this owner does not hold the lock
     * @throws LostException if it has lost it
     * @throws LockException with the code {@link LockException.Code#UNKNOWN} if the daemon has not answered: a lock with a time to
     *     keep may stay taken until that time is over
     */
    public void unlockNow() {
        release(Codes.NOW);
    }

    private void release(int flags) {
        Long thread = Owner.ofThread();
        Hold hold = find(thread);
        try {
            if (hold == null || !hold.release(options.shared, flags)) {
                NotHeldException why = notHeld();
                throw (IllegalMonitorStateException) new IllegalMonitorStateException(why.getMessage()).initCause(why);
            }
        } finally {
            if (hold != null && hold.over && (hold.lost == null || find(thread) == null)) {
                handle.owners.remove(thread); // released, or lost and unlocked as often as it was acquired
            }
        }
    }

    /**
     * Not supported: other programs could not signal a condition.
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
        Hold hold = find(Owner.ofThread());
        return hold != null && hold.held();
    }

    /**
     * Does nothing while this owner holds the lock, and else throws. Call it in the loops of long work. Blocks no longer than
     * {@link Lease#isValid} does.
     *
     * @throws LostException if it was lost
     * @throws NotHeldException if this owner does not hold it
     */
    public void check() {
        mine().check();
    }

    /**
     * Returns how often this owner has acquired the lock in this handle's mode, exclusive or shared, and not unlocked
     * it since. It also counts for a lost lock. Does not block.
     *
     * @return the number of unlocks that are due
     */
    public int holdCount() {
        Hold hold = find(Owner.ofThread());
        return hold == null ? 0 : hold.count(options.shared);
    }

    /**
     * Asks the daemon whether the lock is held. The answer may be outdated when this returns. Blocks until the daemon
     * has answered.
     *
     * @return whether it is held, here or on another host
     */
    public boolean isLocked() {
        return link.inspect(keys).held();
    }

    /**
     * Asks the daemon for the state of the lock: its mode, its waiters, and its holders on any host. Blocks until the daemon
     * has answered, for which it may need several requests to the store.
     *
     * @return the state; it may have changed
     */
    public Inspection inspect() {
        return link.inspect(keys, Codes.EXCLUSIVE, Codes.HOLDERS);
    }

    /**
     * Returns the fencing token: a positive number, larger for each later holder of the key. It stays readable
     * after the lock was lost, until the unlock: that is when it matters. See the package's description for its
     * use.
     *
     * @return the fence; 0, and no protection, only if the daemon has granted the lock alone during an outage of its store,
     *     as configured
     * @throws NotHeldException if this owner does not hold the lock
     */
    public long fence() {
        return mine().fence;
    }

    /**
     * Returns for how long the lock is certainly held. The value rises with each renewal by the daemon.
     * Blocks no longer than {@link Lease#isValid} does.
     *
     * @return the time; zero when this owner does not hold the lock
     */
    public Duration remaining() {
        Hold hold = find(Owner.ofThread());
        return hold == null ? Duration.ZERO : Duration.ofNanos(hold.remaining());
    }

    /**
     * Returns the time until the lock ends by itself: a {@linkplain LockOptions#fixed() fixed} one, or any where the daemon
     * limits how long a lock may be held. It can be longer than {@link #remaining}, which the daemon extends until then.
     * Blocks no longer than {@link Lease#isValid} does.
     *
     * @return the time, zero after the end or a loss; empty if the lock does not end by itself, or is not held
     */
    public Optional<Duration> fixedEnd() {
        Hold hold = find(Owner.ofThread());
        return hold == null ? Optional.empty() : hold.untilEnd();
    }

    /**
     * Renews the lock now, to end ttl from now, but never sooner than before. Only a {@linkplain LockOptions#fixed() fixed}
     * lock needs this. Blocks until the store has confirmed.
     *
     * @param ttl positive; counted in milliseconds
     * @throws LostException if it was lost
     * @throws NotHeldException if this owner does not hold the lock
     * @throws UnavailableException if the store does not confirm: what was known before is still true
     */
    public void extend(Duration ttl) {
        long millis = LockOptions.millis(ttl, "a TTL");
        Hold hold = mine();
        hold.check();
        hold.must(hold.renew(millis));
    }

    /** Returns this owner's hold, one that was lost and not unlocked included; null without one. */
    private Hold find(Long thread) {
        Long owner = options.owner != null ? (Long) options.owner.number
                : options.byThread ? thread : handle.owners.get(thread);
        return owner == null ? null : link.hold(Hold.Id.lock(keys.text[0], owner));
    }

    private Hold mine() {
        Hold hold = find(Owner.ofThread());
        if (hold == null) {
            throw notHeld();
        }
        return hold;
    }

    private NotHeldException notHeld() {
        Conn conn = link.live();
        Hold other = conn == null || options.owner != null ? null : conn.inThread(keys.text[0]);
        return new NotHeldException("lock \"" + key() + "\" is not held by "
                + (options.owner != null ? options.owner : Thread.currentThread())
                + (ownsByHandle() ? " through " + handle.ref : "")
                + (other == null ? "" : ", but by another handle (" + other.site.handle() + ")"));
    }

    @Override
    public String toString() {
        Hold hold = find(Owner.ofThread());
        return "SidecarLock[" + key() + (options.shared ? ", shared" : "")
                + (hold != null && hold.owned() ? ", held by this owner]" : "]");
    }
}
