package io.locksidecar;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * Locks of several keys, which are acquired together, all or none, and held until {@link #close}.
 *
 * <pre>{@code
 * try (Leases both = sidecar.leaseAll(List.of("account:ann", "account:bob"))) {
 *     transfer(ann, both.fence("account:ann"), bob, both.fence("account:bob"));
 * }
 * }</pre>
 *
 * <p><b>Order.</b> The order of the keys does not matter: two callers that name the same keys in different orders never
 * wait for each other. All keys are tried at once, which usually takes one round trip to the store. While the request
 * waits for a key, it holds only keys that come before it in byte order.
 *
 * <p><b>The loss of one is the loss of all,</b> because the work needs them together. From the first loss on, {@link
 * #isValid} is false and {@link #remaining} is zero, and {@link #onLost} reports it. The other locks stay held until
 * {@link #close}, so that the work can be ended first.
 *
 * <p>Apart from that, they are like a {@link Lease}: they belong to no thread, and are their own owner, unless
 * {@linkplain LockOptions#owner(Owner) one was named} or {@linkplain LockOptions#ownedByThread() the thread was}; what
 * that owner held before is acquired once more.
 */
public final class Leases implements AutoCloseable {
    private final Hold[] holds;
    private final boolean shared;
    private final Watcher watcher;
    private volatile boolean closed; // written under this

    /** Is told of each loss, and reports the first one. */
    private static final class Watcher implements Consumer<LostException> {
        private final CompletableFuture<LostException> stage = new CompletableFuture<>();
        private final AtomicBoolean told = new AtomicBoolean();
        private final Link link;
        private final Consumer<LostException> listener;

        Watcher(Link link, Consumer<LostException> listener) {
            this.link = link;
            this.listener = listener;
        }

        @Override
        public void accept(LostException loss) {
            if (told.compareAndSet(false, true)) {
                if (listener != null) {
                    link.tell(listener, new LostException(loss.getMessage(), loss.key(), loss.fence(), loss.reason()));
                }
                stage.complete(loss);
            }
        }
    }

    Leases(Hold[] holds, LockOptions options) {
        this.holds = holds;
        this.shared = options.isShared();
        this.watcher = new Watcher(holds[0].conn.link(), options.onLost());
        for (Hold hold : holds) {
            Holding.listen(hold, watcher);
            hold.leased(this);
        }
    }

    /**
     * Returns the locks' names.
     *
     * @return the keys, in the order in which they were given
     */
    public List<String> keys() {
        return Stream.of(holds).map(h -> h.id.key()).toList();
    }

    /**
     * Returns the fencing tokens, a key's own each. As for a {@link Lease}, they stay readable after a loss.
     *
     * @return the fences, in the order of {@link #keys}
     */
    public List<Long> fences() {
        return Stream.of(holds).map(h -> h.fence).toList();
    }

    /**
     * Returns the fencing token of one of the keys: a positive number, larger for each later holder of that key.
     *
     * @param key one of {@link #keys}
     * @return the fence; 0, and no help, only where a daemon was configured to decide alone in an outage of its
     *     store
     * @throws InvalidException if it is none of them
     */
    public long fence(String key) {
        for (Hold hold : holds) {
            if (hold.id.key().equals(key)) {
                return hold.fence;
            }
        }
        throw new InvalidException("\"" + key + "\" is none of these locks");
    }

    /**
     * Tells whether all the locks are held at this very moment, by all that the daemon has stated. Once false, it stays false.
     * Asks nobody, and blocks no longer than {@link Lease#isValid} does.
     *
     * @return whether all are held
     */
    public boolean isValid() {
        return !closed && held();
    }

    private boolean held() {
        for (Hold hold : holds) {
            if (!hold.held()) {
                return false;
            }
        }
        return true;
    }

    /**
     * Returns for how long all the locks are certainly held as things stand: the least of them. Blocks no longer than
     * {@link Lease#isValid} does.
     *
     * @return the time; zero when they are not valid
     */
    public Duration remaining() {
        long least = closed ? 0 : Long.MAX_VALUE;
        for (Hold hold : holds) {
            least = Math.min(least, hold.remaining());
        }
        return Duration.ofNanos(least);
    }

    /**
     * Returns a stage that completes, normally, when the first of the locks is lost: with that loss, on the client's
     * executor, at once if it has happened. It never completes when they are closed while all are held, nor when
     * the client is closed.
     *
     * @return a stage; it cannot be completed by others
     */
    public CompletionStage<LostException> onLost() {
        return watcher.stage.minimalCompletionStage();
    }

    /**
     * Renews all the locks now, each to end its own TTL from now, but none sooner than before. Only {@linkplain
     * LockOptions#fixed() fixed} locks need this. Blocks until the store has confirmed all.
     *
     * @throws LostException if one was lost; the others may have been renewed
     * @throws NotHeldException if they were closed
     * @throws UnavailableException if the store does not confirm: what was known before still stands
     */
    public void extend() {
        extend(0);
    }

    /**
     * Renews all the locks now, to end ttl from now, but none sooner than before. Blocks until the store has confirmed all.
     *
     * @param ttl positive; counted in milliseconds
     * @throws LostException if one was lost; the others may have been renewed
     * @throws NotHeldException if they were closed
     * @throws InvalidException if the daemon allows no such TTL
     * @throws UnavailableException if the store does not confirm: what was known before still stands
     */
    public void extend(Duration ttl) {
        extend(Times.millis(Times.positive(ttl, "a TTL")));
    }

    private void extend(long ttl) {
        if (closed) {
            throw new NotHeldException("these leases are closed");
        }
        Holding.extend(holds, ttl);
    }

    /**
     * Releases all the locks at once. A second call does nothing. Blocks until the store has confirmed, or until the
     * client's timeout, and cannot be interrupted. No other owner's hold is ever released.
     *
     * <p>If the store has not confirmed in time, or the connection has just ended, no exception is thrown: the work was
     * done under the locks, and the daemon continues the release. (To hear of it, use {@link #releaseAsync}.)
     *
     * @throws LostException if one of the locks was lost before, for the first such key: what was done under them
     *     may not have been protected. The others are released. A {@code try} with resources adds it to an
     *     exception of its body, as a suppressed one
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        held();
        List<Call> calls = end(null);
        if (calls != null) {
            Holding.released(holds, calls);
        }
    }

    /**
     * Returns a hold for which a message that has arrived, but was not read, may decide whether it is lost; null
     * without any.
     */
    private Hold doubtful() {
        return Stream.of(holds).filter(Holding::doubtful).findFirst().orElse(null);
    }

    /** Sends the releases; null if that was done before. */
    private synchronized List<Call> end(Consumer<Call> then) {
        if (closed) {
            return null;
        }
        closed = true;
        Conn conn = holds[0].conn;
        List<Call> calls = conn.releases.release(holds, shared, then);
        conn.mu.lock();
        try {
            for (Hold hold : holds) {
                hold.unlisten(watcher); // its owner may continue to hold it
            }
        } finally {
            conn.mu.unlock();
        }
        return calls;
    }

    /**
     * Releases all the locks at once without waiting; {@link #close} does nothing after it.
     *
     * @return completes, on the client's executor, when the store has confirmed all; exceptionally with {@link
     *     LostException} if one was lost before, for the first such key, and {@link UnconfirmedException} if the
     *     store does not confirm. Cancelling it has no effect on the release
     */
    public CompletableFuture<Void> releaseAsync() {
        Hold doubtful = closed ? null : doubtful();
        if (doubtful == null) {
            return Holding.async(holds, this::end);
        }
        Link link = doubtful.conn.link();
        CompletableFuture<Void> read = new CompletableFuture<>();
        doubtful.conn.whenCaughtUp(() -> link.execute(() -> read.complete(null)));
        return read.thenCompose(x -> Holding.async(holds, this::end));
    }

    @Override
    public String toString() {
        List<String> all = new ArrayList<>();
        for (Hold hold : holds) {
            all.add(hold.id.key() + ", fence " + hold.fence);
        }
        return "Leases[" + String.join("; ", all) + (!closed && Acquire.over(holds) == null ? "" : "; not valid") + "]";
    }
}
