package io.locksidecar;

import java.time.Duration;
import java.util.Objects;
import java.util.function.Consumer;

/**
 * How a lock, or a permit of a semaphore, is to be held. Immutable: each method returns a changed copy.
 *
 * <pre>{@code
 * LockOptions.defaults().ttl(Duration.ofSeconds(10)).onLost(lost -> job.stop())
 * }</pre>
 */
public final class LockOptions {
    private static final LockOptions DEFAULTS = new LockOptions(null, false, false, null, false, null);

    private final Duration ttl;
    private final boolean fixed;
    private final boolean shared;
    private final Owner owner;
    private final boolean byThread;
    private final Consumer<LostException> onLost;

    private LockOptions(
            Duration ttl, boolean fixed, boolean shared, Owner owner, boolean byThread,
            Consumer<LostException> onLost) {
        this.ttl = ttl;
        this.fixed = fixed;
        this.shared = shared;
        this.owner = owner;
        this.byThread = byThread;
        this.onLost = onLost;
    }

    /**
     * Returns what holds unless something else is said: exclusive, the daemon's TTL, renewed by the daemon.
     *
     * @return the defaults
     */
    public static LockOptions defaults() {
        return DEFAULTS;
    }

    /**
     * Sets the length of the lease in the store: for how long the lock outlives a host that dies. The daemon
     * renews it until the release, or until this process or its connection ends, so it is no limit on how long
     * the lock may be held.
     *
     * @param ttl positive; counted in milliseconds. The daemon refuses one out of its range with {@link
     *     InvalidException} when the lock is acquired
     * @return a changed copy
     */
    public LockOptions ttl(Duration ttl) {
        return new LockOptions(Times.positive(ttl, "a TTL"), fixed, shared, owner, byThread, onLost);
    }

    /**
     * Has nobody renew the lock: it ends by itself at the end of its TTL, as lost, unless it is released or
     * extended before ({@link Lease#extend}).
     *
     * @return a changed copy
     */
    public LockOptions fixed() {
        return new LockOptions(ttl, true, shared, owner, byThread, onLost);
    }

    /**
     * Holds the lock together with other shared holders, and apart from exclusive ones. It is a lock's alone: a
     * semaphore refuses it.
     *
     * @return a changed copy
     */
    public LockOptions shared() {
        return shared(true);
    }

    LockOptions shared(boolean yes) {
        return new LockOptions(ttl, fixed, yes, owner, byThread, onLost);
    }

    /**
     * Names the owner of the lock. Everything that acquires a key with this owner shares one hold. By default the owner is
     * the handle together with the thread (for a {@link SidecarLock}), or the lease itself (a {@link Lease}, or {@link
     * Leases}). Permits of a semaphore are always separate.
     *
     * @param owner the owner
     * @return a changed copy
     */
    public LockOptions owner(Owner owner) {
        return new LockOptions(ttl, fixed, shared, Objects.requireNonNull(owner, "owner"), false, onLost);
    }

    /**
     * Makes the acquiring thread alone the owner. All {@link SidecarLock}, {@link Lease} and {@link Leases} objects of the
     * same key with this option share one hold in each thread. It is for code that gets a new handle each time, for example
     * from a lock registry. Each acquire uses the thread that calls it. Any thread may still close the lease.
     *
     * @return a changed copy
     */
    public LockOptions ownedByThread() {
        return new LockOptions(ttl, fixed, shared, null, true, onLost);
    }

    /**
     * Sets who is told when the lock is lost. It is called once for each hold that is lost, and once for {@link
     * Leases} of which any is lost; with the client's executor, so it may block and may use the client. It is not
     * called when the client is closed.
     *
     * @param onLost the listener
     * @return a changed copy
     */
    public LockOptions onLost(Consumer<LostException> onLost) {
        return new LockOptions(ttl, fixed, shared, owner, byThread, Objects.requireNonNull(onLost, "onLost"));
    }

    boolean isShared() {
        return shared;
    }

    Owner owner() {
        return owner;
    }

    boolean isByThread() {
        return byThread;
    }

    Consumer<LostException> onLost() {
        return onLost;
    }

    /** Returns the TTL for the wire. */
    long ttlMillis() {
        return ttl == null ? 0 : Times.millis(ttl);
    }

    /** Returns the flags for the wire. */
    long flags() {
        return fixed ? Codes.FIXED : 0;
    }
}
