/**
 * Distributed locks from the locksidecar daemon on this host: one Unix socket, no store library, no renewal
 * thread, no retry loop.
 *
 * <p>{@link io.locksidecar.Sidecar} is the client. It makes {@link io.locksidecar.SidecarLock}, a {@link
 * java.util.concurrent.locks.Lock} that belongs to a thread and its handle, or to a named {@link io.locksidecar.Owner}; {@link
 * io.locksidecar.SidecarReadWriteLock}; and {@link io.locksidecar.Lease}, which is closed instead of unlocked, belongs
 * to no thread, can be acquired without blocking, and can cover several keys. An {@link io.locksidecar.Election} elects a
 * leader. A {@link io.locksidecar.SidecarSemaphore} has a number of permits.
 *
 * <h2>How long a lock is held</h2>
 *
 * <p>Until it is released. The daemon renews its lease in the store meanwhile, and releases it when this process or
 * its connection ends: a crash frees its locks at once. If the host dies, they are free when the lease's TTL is
 * over. A {@linkplain io.locksidecar.LockOptions#fixed() fixed} lock ends by itself after its TTL.
 *
 * <h2>When it is lost</h2>
 *
 * <p>No lock service can promise that a lock is held for as long as its holder believes: a process may be stopped, a
 * network cut. It can promise that the holder is told, and that the next holder has a larger fence. A hold is lost when
 * the daemon reports the loss, when the connection ends, or when the validity that the daemon has stated is over. A daemon
 * that sends nothing does not extend the validity. Each check compares the validity with a clock that also counts while the
 * machine sleeps (unlike {@link java.lang.System#nanoTime}), and that errs by at most 10 ms, on the safe side.
 *
 * <p>An owner must release a lost lock, by unlocking or closing it, before it can acquire the key again. Until then every
 * acquire throws {@link io.locksidecar.LostException}: no new critical section begins inside the lost one. The same applies to
 * other handles and leases in the thread that acquired the lost lock, unless a lease was lost and a named owner acquires.
 *
 * <h2>Use the fence</h2>
 *
 * <p>A holder that was stopped for too long does not know yet that it has lost the lock. The resource that it writes to
 * can notice this, if it remembers the largest fence that it has seen, and refuses smaller ones.
 *
 * <pre>{@code
 * try (Lease lease = sidecar.lease("account:ann")) {
 *     int rows = update("UPDATE account SET balance = balance - ?, fence = ? WHERE id = 'ann' AND fence <= ?",
 *             amount, lease.fence(), lease.fence());
 *     if (rows == 0) {
 *         throw new IllegalStateException("the lock was lost, and a later holder has written");
 *     }
 * }
 * }</pre>
 *
 * <p>A fence is a positive 63-bit number. It is 0, and protects nothing, only if the daemon has granted the lock alone
 * during an outage of its store, as configured.
 *
 * <h2>Errors</h2>
 *
 * <p>All are unchecked {@link io.locksidecar.LockException}s, except for the {@link java.lang.IllegalMonitorStateException} of
 * an {@code unlock()} by a thread that does not hold the lock. Each has a {@linkplain io.locksidecar.LockException#code code},
 * usually the protocol's. An acquire that throws has acquired nothing. {@link io.locksidecar.NotAcquiredException}, {@link
 * io.locksidecar.NotHeldException} with {@link io.locksidecar.LostException}, and {@link io.locksidecar.UnavailableException}
 * are for the cases that programs usually handle.
 *
 * <h2>Threads and interrupts</h2>
 *
 * <p>Everything may be used by any number of threads, platform or virtual. An interrupt ends the wait of the interrupted
 * thread and withdraws its request; a grant that arrives nevertheless is released. The shared connection stays open. The
 * thread that reads it runs no code of the user.
 */
package io.locksidecar;
