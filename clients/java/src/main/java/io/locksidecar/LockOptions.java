package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * How a lock, or a permit of a semaphore, is to be held. Immutable: each method returns a changed copy.
 *
 * <pre>{@code
 * LockOptions.defaults().ttl(Duration.ofSeconds(10)).onLost(lost -> job.stop())
 * }</pre>
 */
public final class LockOptions {
    private static final LockOptions DEFAULTS = new LockOptions(0, false, false, null, false, null, 0, null);

    /** In milliseconds; 0 for the daemon's default. */
    final long ttl;
    final boolean fixed;
    final boolean shared;
    final Owner owner;
    final boolean byThread;
    private final Boolean confirm;
    /** In milliseconds; 0 for not. */
    final long keep;
    final Consumer<LostException> onLost;

    private LockOptions(
            long ttl, boolean fixed, boolean shared, Owner owner, boolean byThread, Boolean confirm, long keep,
            Consumer<LostException> onLost) {
        this.ttl = ttl;
        this.fixed = fixed;
        this.shared = shared;
        this.owner = owner;
        this.byThread = byThread;
        this.confirm = confirm;
        this.keep = keep;
        this.onLost = onLost;
    }

    /**
     * Returns the defaults: exclusive, with the daemon's TTL, renewed by the daemon.
     *
     * @return the defaults
     */
    public static LockOptions defaults() {
        return DEFAULTS;
    }

    /**
     * Sets the length of the lease in the store: for how long the lock outlives a host that dies. The daemon
     * renews it until the release, or until this process or its connection ends. So it is no limit on how long
     * the lock may be held.
     *
     * @param ttl positive; counted in milliseconds. The daemon refuses one out of its range with the code {@link
     *     LockException.Code#INVALID} when the lock is acquired
     * @return a changed copy
     */
    public LockOptions ttl(Duration ttl) {
        return new LockOptions(millis(ttl, "a TTL"), fixed, shared, owner, byThread, confirm, keep, onLost);
    }

    /**
     * Makes the lock end at the end of its TTL, as lost, unless it is released or {@linkplain Lease#extend extended}
     * before. The daemon does not renew it.
     *
     * @return a changed copy
     */
    public LockOptions fixed() {
        return new LockOptions(ttl, true, shared, owner, byThread, confirm, keep, onLost);
    }

    /**
     * Makes the lock shared: it excludes exclusive holders, but not other shared ones. Semaphores refuse this option.
     *
     * @return a changed copy
     */
    public LockOptions shared() {
        return shared(true);
    }

    LockOptions shared(boolean yes) {
        return new LockOptions(ttl, fixed, yes, owner, byThread, confirm, keep, onLost);
    }

    /**
     * Names the owner of the lock. Everything that acquires a key with this owner shares one hold. By default the owner is
     * the handle together with the thread (for a {@link SidecarLock}), or the {@link Lease} itself. Permits of a semaphore
     * are always separate.
     *
     * @param owner the owner
     * @return a changed copy
     */
    public LockOptions owner(Owner owner) {
        Objects.requireNonNull(owner, "owner");
        return new LockOptions(ttl, fixed, shared, owner, false, confirm, keep, onLost);
    }

    /**
     * Makes the acquiring thread alone the owner. All {@link SidecarLock} and {@link Lease} objects of the same key with
     * this option share one hold in each thread. It is for code that gets a new handle each time, for example from a lock
     * registry. Each acquire uses the thread that calls it. Any thread may still close the lease.
     *
     * @return a changed copy
     */
    public LockOptions ownedByThread() {
        return new LockOptions(ttl, fixed, shared, null, true, confirm, keep, onLost);
    }

    /**
     * Sets whether a release waits until the store has confirmed it; by default as {@link Sidecar.Builder#confirm} says.
     *
     * <p>Without confirmation, {@code unlock} and {@code close} return as soon as the release is sent. That is faster, and
     * the next acquire on this host is served in order. But a try on another host may still find the lock held, and a
     * failed release is only reported to {@link #onLost}, with the reason {@code unconfirmed} or {@code gone}. A lock that
     * is known to be lost still throws {@link LostException}.
     *
     * @param confirm whether to wait
     * @return a changed copy
     */
    public LockOptions confirm(boolean confirm) {
        return new LockOptions(ttl, fixed, shared, owner, byThread, confirm, keep, onLost);
    }

    /**
     * Keeps the lock for at least this long after it was granted, even if it is released or this process ends before. Until
     * then no other owner gets it. This is for jobs that must run at most once per period on all hosts. Locks of several
     * keys refuse this option, and so do some stores, with the code {@link LockException.Code#UNSUPPORTED}.
     *
     * <p>{@link Lease#closeNow} and {@link SidecarLock#unlockNow} end the lock at once all the same, and after the release
     * {@link Sidecar#releaseDetached} does.
     *
     * @param keep positive; counted in milliseconds
     * @return a changed copy
     */
    public LockOptions keep(Duration keep) {
        return new LockOptions(ttl, fixed, shared, owner, byThread, confirm, millis(keep, "a time to keep"), onLost);
    }

    /**
     * Sets a listener that is told when the lock is lost. It is called once for each hold that is lost, and once for a
     * {@link Lease} of several keys of which any is lost. The client's executor runs it, so it may block and may use the
     * client. It is not called when the client is closed.
     *
     * @param onLost the listener
     * @return a changed copy
     */
    public LockOptions onLost(Consumer<LostException> onLost) {
        Objects.requireNonNull(onLost, "onLost");
        return new LockOptions(ttl, fixed, shared, owner, byThread, confirm, keep, onLost);
    }

    /** Returns the flags of an acquire for the wire. */
    long flags() {
        return fixed ? Codes.FIXED : 0;
    }

    /** Returns the flags of a release for the wire, for a client with this default. */
    int releaseFlags(Link link) {
        return (confirm == null ? link.setup.confirm() : confirm) ? 0 : Codes.QUIET;
    }

    // ---- durations of callers, on the wire ----

    /** Returns d in milliseconds, at least 1, if it is above 0. */
    static long millis(Duration d, String what) {
        Objects.requireNonNull(d, what);
        if (d.isNegative() || d.isZero()) {
            throw new LockException(Code.INVALID, what + " must be a positive duration");
        }
        return Math.max(1, nanos(d) / 1_000_000);
    }

    /** Returns a wait in milliseconds, rounded up; 0 if there is nothing to wait for. */
    static long wait(Duration d) {
        Objects.requireNonNull(d, "wait");
        return d.isNegative() ? 0 : wait(nanos(d), TimeUnit.NANOSECONDS);
    }

    /** Like wait, with the arguments of Lock. */
    static long wait(long time, TimeUnit unit) {
        long nanos = unit.toNanos(time); // the result is limited if it would not fit
        long millis = nanos / 1_000_000 + (nanos % 1_000_000 > 0 ? 1 : 0);
        return Math.max(0, Math.min(millis, Codes.MAX_WAIT));
    }

    /** Returns a duration that is not negative, in nanoseconds; so many at most that a System.nanoTime can be added. */
    static long nanos(Duration d) {
        return d.getSeconds() < Long.MAX_VALUE / 4_000_000_000L ? d.toNanos() : Long.MAX_VALUE / 4;
    }
}
