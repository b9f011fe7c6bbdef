package io.locksidecar;

import io.locksidecar.LockException.Code;
import io.locksidecar.Requests.ReleaseResult;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;

/**
 * One acquire of a lock, of the locks of several keys together, or one permit of a semaphore. It is held until {@link
 * #close}.
 *
 * <pre>{@code
 * try (Lease lease = sidecar.lease("order:42")) {
 *     charge(order, lease.fence());
 * }
 * try (Lease both = sidecar.leaseAll(List.of("account:ann", "account:bob"))) {
 *     transfer(both.fence("account:ann"), both.fence("account:bob"));
 * }
 * }</pre>
 *
 * <p><b>The owner.</b> A lease belongs to no thread: any thread may use and close it. It is its own owner, so a second lease
 * of the same key waits for the first. If an {@linkplain LockOptions#owner owner was named}, all its leases of one key are
 * one hold, which ends with the last of them. Permits of a {@link SidecarSemaphore} are always separate.
 *
 * <p>A thread that would wait for a lease that it has acquired itself gets the code {@link LockException.Code#ALREADY_HELD}
 * instead, because usually no other thread would close it. If another thread does, name an owner for each lease, or use {@link
 * Sidecar#leaseAsync}: these wait. If the lease is lost, that thread gets {@link LostException} until the lease is closed, or
 * thrown away and garbage-collected.
 *
 * <p>A lease that is never closed stays held until the client is closed, its process ends or it is lost. It is
 * not released when it becomes unreachable: that can happen while the program still works under the lease.
 *
 * <p><b>Several keys.</b> Their order does not matter: two callers that name the same keys in different orders never wait for
 * each other. The loss of one is the loss of all, because the work needs them together: {@link #isValid} becomes false,
 * {@link #remaining} is zero, and {@link #onLost} reports the first loss. The other locks stay held until {@link #close}, so
 * that the work can be ended first.
 *
 * <p>The methods that send a request block until the daemon has answered, at most for the client's timeout. They throw
 * {@link LostException} if the lease was lost, {@link NotHeldException} if it was closed, and {@link UnavailableException} if
 * the store does not confirm; what was known before is then still true.
 */
public final class Lease implements AutoCloseable {
    private final Hold[] holds;
    private final Hold hold; // the first
    private final LockOptions options;
    private final Watcher watcher; // null for one key
    private final Mutex mu = new Mutex();
    private volatile boolean closed; // written under mu
    private volatile boolean shared; // written under mu

    /** Listens for the losses of several keys, and reports the first one. */
    private record Watcher(
            Link link, Consumer<LostException> listener, AtomicBoolean told, CompletableFuture<LostException> stage)
            implements Consumer<LostException> {
        @Override
        public void accept(LostException loss) {
            if (told.compareAndSet(false, true)) {
                if (listener != null) {
                    link.tell(listener, loss.again());
                }
                stage.complete(loss);
            }
        }
    }

    Lease(Hold[] holds, LockOptions options) {
        this.holds = holds;
        this.hold = holds[0];
        this.options = options;
        this.shared = options.shared;
        this.watcher = holds.length == 1 ? null
                : new Watcher(hold.conn.link, options.onLost, new AtomicBoolean(), new CompletableFuture<>());
        Consumer<LostException> listener = watcher == null ? options.onLost : watcher;
        for (Hold h : holds) {
            if (listener != null) {
                h.listen(listener);
            }
            h.leased(this);
        }
    }

    /**
     * Returns the name of the lock or semaphore; with several keys, of the first.
     *
     * @return the key
     */
    public String key() {
        return hold.id.key;
    }

    /**
     * Returns the names of all its locks.
     *
     * @return the keys, in the order in which they were given
     */
    public List<String> keys() {
        return Stream.of(holds).map(h -> h.id.key).toList();
    }

    /**
     * Returns the fencing token: a positive number, larger for each later holder of the key. It stays readable after
     * the lock was lost or released. A resource that remembers the largest fence it has seen, and refuses smaller ones,
     * is safe from holders that do not know yet that they have lost the lock. The fence of a permit differs from the
     * fences of all other permits. Its order means nothing, because holders overlap.
     *
     * @return the fence, of the first of several keys; 0, and no protection, only if the daemon has granted the lock alone
     *     during an outage of its store, as configured
     */
    public long fence() {
        return hold.fence;
    }

    /**
     * Returns the fencing token of one of the keys.
     *
     * @param key one of {@link #keys}
     * @return the fence, as for {@link #fence()}
     * @throws LockException with the code {@link LockException.Code#INVALID} if it is none of them
     */
    public long fence(String key) {
        return Stream.of(holds).filter(h -> h.id.key.equals(key)).findFirst().orElseThrow(
                () -> new LockException(Code.INVALID, "\"" + key + "\" is not a key of this lease")).fence;
    }

    /**
     * Returns the fencing tokens of all keys.
     *
     * @return the fences, in the order of {@link #keys}
     */
    public List<Long> fences() {
        return Stream.of(holds).map(h -> h.fence).toList();
    }

    /**
     * Tells whether the lock is held now, by everything that the daemon has stated. Once false, it stays false. Sends
     * nothing, and takes well under a microsecond while the lock is held. It blocks only if this process was stopped
     * and messages that have arrived must be read first, and then for at most half a second.
     *
     * @return whether it is held
     */
    public boolean isValid() {
        return !closed && held();
    }

    private boolean held() {
        for (Hold h : holds) {
            if (!h.held()) {
                return false;
            }
        }
        return true;
    }

    /**
     * Does nothing while the lock is held, and else throws. Call it in the loops of long work. Blocks no longer than {@link
     * #isValid} does.
     *
     * @throws LostException if it was lost
     * @throws NotHeldException if it was closed
     */
    public void check() {
        if (closed) {
            throw new NotHeldException("the lease of " + keys() + " is closed");
        }
        for (Hold h : holds) {
            h.check();
        }
    }

    /**
     * Returns for how long the lock is certainly held. Unless it is {@linkplain LockOptions#fixed() fixed}, the value rises
     * again with each renewal by the daemon. Blocks no longer than {@link #isValid} does.
     *
     * @return the time, the shortest of several keys; zero when the lease is not valid
     */
    public Duration remaining() {
        return closed ? Duration.ZERO : Duration.ofNanos(Stream.of(holds).mapToLong(Hold::remaining).min().orElseThrow());
    }

    /**
     * Returns the time until the lock ends by itself: a {@linkplain LockOptions#fixed() fixed} one, or any where the daemon
     * limits how long a lock may be held. It can be longer than {@link #remaining}, which the daemon extends until then.
     * Blocks no longer than {@link #isValid} does.
     *
     * @return the time, the shortest of several keys, zero when the lease is no longer valid; empty if the lock does not end
     *     by itself
     */
    public Optional<Duration> fixedEnd() {
        return Stream.of(holds).flatMap(h -> h.untilEnd().stream()).min(Duration::compareTo)
                .map(left -> closed ? Duration.ZERO : left);
    }

    /**
     * Tells whether the lease is shared.
     *
     * @return false if it is exclusive, or a permit
     */
    public boolean isShared() {
        return shared;
    }

    /**
     * Returns how often its owner has acquired the key and not released it, in both modes together. It is 1 unless an owner
     * was named.
     *
     * @return the number of releases that are due; 0 after the last one
     */
    public int holdCount() {
        return hold.count(true) + hold.count(false);
    }

    /**
     * Returns a stage that completes, normally, when the lock is lost, or the first of several: with the loss, on the client's
     * executor, at once if that has happened. It never completes when the client is closed, nor when the lease is closed while
     * it is held, unless the daemon reports that a release without confirmation has failed.
     *
     * @return a new stage; it cannot be completed by others
     */
    public CompletionStage<LostException> onLost() {
        if (watcher != null) {
            return watcher.stage.thenApply(LostException::again).minimalCompletionStage();
        }
        CompletableFuture<LostException> stage = new CompletableFuture<>();
        hold.listen(stage::complete);
        return stage.minimalCompletionStage();
    }

    /** Renews the lock now, to end its own TTL from now, but never sooner than before. Only a fixed lock needs this. */
    public void extend() {
        extend(0);
    }

    /**
     * Renews the lock now, to end ttl from now, but never sooner than before. Only a fixed lock needs this. If one of several
     * keys was lost, the others may have been renewed.
     *
     * @param ttl positive; counted in milliseconds
     */
    public void extend(Duration ttl) {
        extend(LockOptions.millis(ttl, "a TTL"));
    }

    private void extend(long ttl) {
        check();
        List<Call> calls = Stream.of(holds).map(h -> h.renew(ttl)).toList();
        calls.forEach(c -> c.hold.must(c));
    }

    /**
     * Turns an exclusive lease into a shared one, without releasing the lock in between. A shared lease does not
     * change. The fence stays. A permit is refused with the code {@link LockException.Code#INVALID}.
     */
    public void downgrade() {
        if (hold.isPermit()) {
            throw new LockException(Code.INVALID, hold + ": a permit cannot be downgraded");
        }
        held();
        List<Call> calls = new ArrayList<>();
        mu.lock();
        try (mu) {
            if (closed) {
                check();
            }
            for (int i = 0; i < holds.length; i++) {
                if (holds[i].conn.requests.downgrade(holds[i], shared) instanceof Call c) {
                    calls.add(c);
                }
            }
            shared = true;
        }
        calls.forEach(c -> c.hold.must(c));
    }

    /**
     * Releases the lock, as {@link LockOptions#confirm} says. A second call does nothing. Cannot be interrupted. No other
     * owner's hold is ever released.
     *
     * <p>By default it blocks until the store has confirmed, or until the client's timeout. If the store has not confirmed in
     * time, or the connection has just ended, no exception is thrown: the work was done under the lock, and the daemon
     * continues the release. (To hear of it, use {@link #releaseAsync}.)
     *
     * @throws LostException if the lock was lost before: what was done under it may not have been protected. A
     *     {@code try} with resources adds it to an exception of its body, as a suppressed one. Of several keys, the others
     *     are released
     */
    @Override
    public void close() {
        release(options.releaseFlags(hold.conn.link));
    }

    /**
     * Releases the lock like {@link #close()}, but does not wait until the store has confirmed; see {@link
     * LockOptions#confirm}.
     *
     * @throws LostException if the lock was lost before
     */
    public void closeUnconfirmed() {
        release(Codes.QUIET);
    }

    /**
     * Releases the lock like {@link #close()}, and frees it at once even if it has a time to {@linkplain LockOptions#keep
     * keep}.
     *
     * @throws LostException if the lock was lost before
     * @throws LockException with the code {@link LockException.Code#UNKNOWN} if the daemon has not answered: a lock with a time to
     *     keep may stay taken until that time is over
     */
    public void closeNow() {
        release(Codes.NOW);
    }

    private void release(int flags) {
        if (closed) {
            return;
        }
        held();
        List<Call> calls = new ArrayList<>();
        Object left;
        mu.lock();
        try (mu) {
            if (closed) {
                return;
            }
            left = send(flags, null, calls);
        }
        // Otherwise no answer is awaited, and a loss, if any, came after the release.
        if (left == null || left == ReleaseResult.LOST || flags != Codes.QUIET && left instanceof Call) {
            boolean frees = left instanceof Call c && c.frees;
            Hold.logUnconfirmed(failure(flags == Codes.QUIET ? List.of() : calls, c -> c.hold.answer(c)), frees);
        }
    }

    /** Sends the releases and adds their calls to a list. Returns the result of the release of a single key, else null. mu is held. */
    private Object send(int flags, Consumer<Call> then, List<Call> calls) {
        closed = true;
        Object left = null;
        if (holds.length > 1 && flags != Codes.QUIET) {
            calls.addAll(hold.conn.requests.release(holds, shared, then));
        } else {
            for (Hold h : holds) {
                left = h.conn.requests.release(h, shared, flags, then);
                if (left instanceof Call c) {
                    calls.add(c);
                }
            }
        }
        if (watcher != null) {
            Stream.of(holds).forEach(h -> h.unlisten(watcher));
        }
        return holds.length == 1 ? left : null;
    }

    /** Returns the first loss of the holds or calls, or else the first other failure of a call; or null. */
    private LockException failure(List<Call> calls, Function<Call, LockException> of) {
        LockException first = Stream.of(holds).filter(h -> h.lost != null).findFirst().map(h -> h.loss(h.lost)).orElse(null);
        for (Call c : calls) {
            LockException next = of.apply(c);
            first = first == null || next instanceof LostException && !(first instanceof LostException) ? next : first;
        }
        return first;
    }

    /**
     * Releases the lock without waiting, once; {@link #close} does nothing after it.
     *
     * @return completes, on the client's executor, when the store has confirmed; exceptionally with {@link
     *     LostException} if the lock was lost before, and with the code {@link LockException.Code#UNKNOWN} if the store does
     *     not confirm. Cancelling it has no effect on the release
     */
    public CompletableFuture<Void> releaseAsync() {
        return releaseAsync(0);
    }

    /** Releases a grant that came after its future was completed. It is not kept either. */
    void giveBack() {
        releaseAsync(hold.unwanted());
    }

    private CompletableFuture<Void> releaseAsync(int flags) {
        Hold doubtful = closed ? null : Stream.of(holds).filter(h -> !h.over && !h.owned()).findFirst().orElse(null);
        if (doubtful == null) {
            return sendAsync(flags);
        }
        Link link = doubtful.conn.link; // an unread message may extend the hold, so the release comes after the reading
        CompletableFuture<Void> read = new CompletableFuture<>();
        doubtful.conn.whenCaughtUp(() -> link.execute(() -> read.complete(null)));
        return read.thenCompose(x -> sendAsync(flags));
    }

    private CompletableFuture<Void> sendAsync(int flags) {
        CompletableFuture<Void> future = new CompletableFuture<>();
        List<Call> calls = new ArrayList<>();
        // The number of calls without an answer. Until the number of calls is added, it is minus the number of answers.
        AtomicInteger open = new AtomicInteger();
        Runnable end = () -> {
            LockException first = failure(calls, c -> c.hold.failure(c));
            if (first == null) {
                future.complete(null);
            } else {
                future.completeExceptionally(first);
            }
        };
        mu.lock();
        try (mu) {
            if (closed) {
                future.complete(null);
                return future;
            }
            if (send(flags, c -> countDown(open, end), calls) == ReleaseResult.NOT_OWNED) {
                future.completeExceptionally(hold.notHeld());
                return future;
            }
        }
        if (open.addAndGet(calls.size()) == 0) {
            end.run();
        }
        return future;
    }

    private void countDown(AtomicInteger open, Runnable end) {
        if (open.decrementAndGet() == 0) {
            hold.conn.link.execute(end);
        }
    }

    @Override
    public String toString() {
        List<String> all = Stream.of(holds).map(h -> h.id.key + ", fence " + h.fence).toList();
        return "Lease[" + String.join("; ", all) + (!closed && Acquire.over(holds) == null ? "" : ", not valid") + "]";
    }
}
