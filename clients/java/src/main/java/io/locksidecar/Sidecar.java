package io.locksidecar;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * A client of the locksidecar daemon on this host: one connection, shared by any number of threads.
 *
 * <pre>{@code
 * Sidecar sidecar = Sidecar.create(); // one for the process
 * try (Lease lease = sidecar.lease("order:42")) {
 *     charge(order, lease.fence());
 * }
 * }</pre>
 *
 * <p>It connects when it is first needed, and again after the daemon has restarted. After that, no earlier hold is
 * valid. Any thread may call its methods. It has one daemon thread of its own, and the threads of its executor. A
 * client that is not closed lives as long as the process, whether it is reachable or not.
 */
public final class Sidecar implements AutoCloseable {
    final Link link;

    private Sidecar(Builder b) {
        Path path = b.path != null ? b.path : IoThread.SocketPath.byDefault();
        this.link = new Link(new Link.Setup(
                path, b.name, b.label, b.timeout, b.patience, b.confirm, b.executor, b.onLost, b.traceparent));
    }

    /**
     * Makes a client of the daemon at the usual place: the socket that the environment variable {@code
     * LOCKSIDECAR_SOCKET} names; else, unless this process runs as root, {@code
     * $XDG_RUNTIME_DIR/locksidecar/locksidecar.sock}; else {@code /run/locksidecar/locksidecar.sock}. It does not
     * connect yet.
     *
     * @return a new client
     */
    public static Sidecar create() {
        return builder().build();
    }

    /**
     * Makes a client of the daemon whose socket is at path. It does not connect yet.
     *
     * @param path the socket's path
     * @return a new client
     */
    public static Sidecar create(Path path) {
        return builder().socket(path).build();
    }

    /**
     * Returns a builder for clients with other settings.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Sets up a {@link Sidecar}. */
    public static final class Builder {
        private Path path;
        private String name = program();
        private String label = "";
        private boolean confirm = true;
        private Executor executor;
        private Consumer<LostException> onLost;
        private long timeout = 5_000_000_000L;
        private long patience = 2_000_000_000L;
        private Supplier<String> traceparent = () -> null;

        private Builder() {}

        private static String program() {
            String command = System.getProperty("sun.java.command", "").split(" ", 2)[0];
            String name = command.substring(command.lastIndexOf('/') + 1);
            return name.isEmpty() ? "java" : name;
        }

        /**
         * Sets where the daemon's socket is.
         *
         * @param path the socket's path
         * @return this
         */
        public Builder socket(Path path) {
            this.path = Objects.requireNonNull(path, "path");
            return this;
        }

        /**
         * Sets the client's name in the daemon's lists, for people; by default the name of the main class or jar.
         *
         * @param name the program's name; what does not fit into 128 bytes is cut
         * @return this
         */
        public Builder name(String name) {
            this.name = Objects.requireNonNull(name, "name");
            return this;
        }

        /**
         * Sets what else people may want to see in the daemon's lists.
         *
         * @param label any text; what does not fit into 128 bytes is cut
         * @return this
         */
        public Builder label(String label) {
            this.label = Objects.requireNonNull(label, "label");
            return this;
        }

        /**
         * Sets how long the daemon may take to answer, beyond any wait that was asked for; by default 5 seconds.
         *
         * @param timeout positive
         * @return this
         */
        public Builder timeout(Duration timeout) {
            LockOptions.millis(timeout, "a timeout");
            this.timeout = LockOptions.nanos(timeout);
            return this;
        }

        /** Sets how long an acquire waits for a daemon that is absent or draining: for tests. */
        Builder patience(Duration patience) {
            this.patience = LockOptions.nanos(patience);
            return this;
        }

        /**
         * Sets whether releases wait until the store has confirmed them; by default they do. {@link LockOptions#confirm} can
         * say otherwise for a lock, and explains the consequences.
         *
         * @param confirm whether to wait
         * @return this
         */
        public Builder confirm(boolean confirm) {
            this.confirm = confirm;
            return this;
        }

        /**
         * Sets a listener that is told of each loss of a lock of this client, in addition to {@link LockOptions#onLost}.
         *
         * @param onLost the listener; the client's executor runs it
         * @return this
         */
        public Builder onLost(Consumer<LostException> onLost) {
            this.onLost = Objects.requireNonNull(onLost, "onLost");
            return this;
        }

        /**
         * Sets the executor that runs listeners of losses and completes futures and stages.
         *
         * <p>By default the client uses its own daemon threads, which end when they are idle: up to 64 for losses, and up
         * to 64 for everything else. Further callbacks wait in a queue. If no callback of a queue has started for a second,
         * one more thread starts. So blocking callbacks of futures never delay a loss. If more than 64 loss listeners
         * block, each of them delays the ones behind it by at most two seconds.
         *
         * @param executor must not run tasks on the thread that submits them. If its number of threads is bounded,
         *     callbacks must not wait for one another: a callback that joins another future of this client, or waits for
         *     a lock that another callback releases, keeps a thread busy. A blocking callback then delays losses, too
         * @return this
         */
        public Builder executor(Executor executor) {
            this.executor = Objects.requireNonNull(executor, "executor");
            return this;
        }

        /**
         * Sets the function that returns the trace context of each acquire. A daemon that exports traces makes the
         * acquire a span of that trace.
         *
         * @param traceparent returns the traceparent of W3C Trace Context, or null for none; called by the thread that
         *     acquires, and must not block
         * @return this
         */
        public Builder traceparent(Supplier<String> traceparent) {
            this.traceparent = Objects.requireNonNull(traceparent, "traceparent");
            return this;
        }

        /**
         * Makes the client. It does not connect yet.
         *
         * @return a new client
         */
        public Sidecar build() {
            return new Sidecar(this);
        }
    }

    /**
     * Connects now, if there is no connection, instead of with the first acquire. So a program learns at its start whether
     * there is a daemon. Makes one attempt, and blocks no longer than the client's timeout.
     *
     * @return this
     * @throws UnavailableException if no daemon answers
     * @throws LockException if the daemon does not let this client in, or speaks another version of the protocol
     */
    public Sidecar connect() {
        link.connection();
        return this;
    }

    /**
     * Returns the path of the daemon's socket, whether it exists or not.
     *
     * @return the socket's path
     */
    public Path socket() {
        return link.setup.path();
    }

    /**
     * Returns a handle for an exclusive lock of the thread that uses it. Nothing is acquired, and nothing sent.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return a handle
     */
    public SidecarLock lock(String key) {
        return lock(key, LockOptions.defaults());
    }

    /**
     * Returns a handle for a lock. Nothing is acquired, and nothing sent.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @param options how it is to be held
     * @return a handle
     */
    public SidecarLock lock(String key, LockOptions options) {
        Objects.requireNonNull(options, "options");
        return new SidecarLock(link, Keys.of(key), options, new SidecarLock.Handle("SidecarLock"));
    }

    /**
     * Returns a handle for a lock with readers and writers. Nothing is acquired, and nothing sent.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return a handle
     */
    public SidecarReadWriteLock readWriteLock(String key) {
        return readWriteLock(key, LockOptions.defaults());
    }

    /**
     * Returns a handle for a lock with readers and writers. Nothing is acquired, and nothing sent.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @param options how it is to be held; each handle sets by itself whether it is shared
     * @return a handle
     */
    public SidecarReadWriteLock readWriteLock(String key, LockOptions options) {
        return new SidecarReadWriteLock(link, Keys.of(key), Objects.requireNonNull(options, "options"));
    }

    /**
     * Returns a handle for a semaphore. Nothing is acquired, and nothing sent.
     *
     * @param key the semaphore's name: 1 to 512 bytes in UTF-8, without control characters
     * @param permits the number of permits across all hosts, 1 to 10,000; all callers give the same number
     * @return a handle
     */
    public SidecarSemaphore semaphore(String key, int permits) {
        return semaphore(key, permits, LockOptions.defaults());
    }

    /**
     * Returns a handle for a semaphore. Nothing is acquired, and nothing sent.
     *
     * @param key the semaphore's name: 1 to 512 bytes in UTF-8, without control characters
     * @param permits the number of permits across all hosts, 1 to 10,000; all callers give the same number
     * @param options how each permit is to be held
     * @return a handle
     * @throws IllegalArgumentException if the options say shared, which is only for locks
     */
    public SidecarSemaphore semaphore(String key, int permits, LockOptions options) {
        return new SidecarSemaphore(link, Keys.permit(key, permits), Objects.requireNonNull(options, "options"));
    }

    /**
     * Acquires a lock, and waits without bound, or until this thread is interrupted. See {@link Lease} for its owner, and
     * {@link SidecarLock} for what can go wrong; this is the same for all methods that return leases.
     *
     * @param key the lock's name
     * @return the lease; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     */
    public Lease lease(String key) throws InterruptedException {
        return lease(key, LockOptions.defaults());
    }

    /**
     * Acquires a lock as the options say, and waits without bound, or until this thread is interrupted.
     *
     * @param key the lock's name
     * @param options how it is to be held, and by which owner
     * @return the lease; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     */
    public Lease lease(String key, LockOptions options) throws InterruptedException {
        return begin(Keys.of(key), options, -1).awaited().must();
    }

    /**
     * Acquires a lock, and waits for it no longer than this, or until this thread is interrupted.
     *
     * @param key the lock's name
     * @param wait the longest wait, counted in milliseconds, rounded up
     * @return the lease; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws NotAcquiredException if another owner held the lock for too long
     */
    public Lease lease(String key, Duration wait) throws InterruptedException {
        return begin(Keys.of(key), LockOptions.defaults(), LockOptions.wait(wait)).awaited().must();
    }

    /**
     * Acquires a lock if it is free and no other owner waits for it. Blocks no longer than the daemon needs to answer, and no
     * longer than the client's timeout. An interrupt is kept for later.
     *
     * @param key the lock's name
     * @return the lease, to be closed; or nothing
     */
    public Optional<Lease> tryLease(String key) {
        return tryLease(key, LockOptions.defaults());
    }

    /**
     * Acquires a lock as the options say if it can be had at once. Blocks no longer than the daemon needs to answer, and
     * no longer than the client's timeout. An interrupt is kept for later.
     *
     * @param key the lock's name
     * @param options how it is to be held, and by which owner
     * @return the lease, to be closed; or nothing
     */
    public Optional<Lease> tryLease(String key, LockOptions options) {
        return Optional.ofNullable(begin(Keys.of(key), options, 0).awaitedUninterruptibly().lease());
    }

    /**
     * Acquires a lock as the options say, and waits for it no longer than this, or until this thread is interrupted.
     *
     * @param key the lock's name
     * @param wait the longest wait, counted in milliseconds, rounded up; with 0 or less, it does not wait
     * @param options how it is to be held, and by which owner
     * @return the lease, to be closed; or nothing
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     */
    public Optional<Lease> tryLease(String key, Duration wait, LockOptions options) throws InterruptedException {
        return Optional.ofNullable(begin(Keys.of(key), options, LockOptions.wait(wait)).awaited().lease());
    }

    /**
     * Acquires a lock without blocking, and waits for it without bound.
     *
     * @param key the lock's name
     * @return see {@link #leaseAsync(String, Duration, LockOptions)}
     */
    public CompletableFuture<Lease> leaseAsync(String key) {
        return new Acquire.Future(link, Keys.of(key), LockOptions.defaults(), -1);
    }

    /**
     * Acquires a lock as the options say, without blocking, and waits for it no longer than this.
     *
     * <p>The future completes on the client's executor: with the lease, which is to be closed; or with what the
     * blocking methods throw, {@link NotAcquiredException} if the wait is over. Cancelling it, or completing it in
     * another way (as {@link CompletableFuture#orTimeout} does), withdraws the request, and a grant that crosses
     * that is released. Cancelling a stage that depends on it does not.
     *
     * @param key the lock's name
     * @param wait the longest wait, counted in milliseconds, rounded up; with 0 or less, it does not wait
     * @param options how it is to be held, and by which owner
     * @return the lease to come
     */
    public CompletableFuture<Lease> leaseAsync(String key, Duration wait, LockOptions options) {
        return new Acquire.Future(link, Keys.of(key), options, LockOptions.wait(wait));
    }

    /**
     * Acquires the locks of several keys, all or none, and waits without bound, or until this thread is interrupted.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @return the lease of all; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     */
    public Lease leaseAll(Collection<String> keys) throws InterruptedException {
        return leaseAll(keys, LockOptions.defaults());
    }

    /**
     * Acquires the locks of several keys as the options say, all or none, and waits without bound, or until this
     * thread is interrupted.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @param options how all of them are to be held, and by which owner
     * @return the lease of all; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     */
    public Lease leaseAll(Collection<String> keys, LockOptions options) throws InterruptedException {
        return begin(Keys.all(keys), options, -1).awaited().must();
    }

    /**
     * Acquires the locks of several keys, all or none, and waits no longer than this in total, or until this thread is
     * interrupted.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @param wait the longest wait, counted in milliseconds, rounded up
     * @return the lease of all; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws NotAcquiredException if one of them was not free in time; it names this key
     */
    public Lease leaseAll(Collection<String> keys, Duration wait) throws InterruptedException {
        return begin(Keys.all(keys), LockOptions.defaults(), LockOptions.wait(wait)).awaited().must();
    }

    /**
     * Acquires the locks of several keys, all or none, if all are free and no other owner waits for them. Blocks no longer
     * than the daemon needs to answer, and no longer than the client's timeout. An interrupt is kept for later.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @return the lease of all, to be closed; or nothing
     */
    public Optional<Lease> tryLeaseAll(Collection<String> keys) {
        return Optional.ofNullable(begin(Keys.all(keys), LockOptions.defaults(), 0).awaitedUninterruptibly().lease());
    }

    /**
     * Acquires the locks of several keys as the options say, all or none, and waits no longer than this in total, or until
     * this thread is interrupted.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @param wait the longest wait, counted in milliseconds, rounded up; with 0 or less, it does not wait
     * @param options how all of them are to be held, and by which owner
     * @return the lease of all, to be closed; or nothing
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     */
    public Optional<Lease> tryLeaseAll(Collection<String> keys, Duration wait, LockOptions options)
            throws InterruptedException {
        return Optional.ofNullable(begin(Keys.all(keys), options, LockOptions.wait(wait)).awaited().lease());
    }

    /**
     * Acquires the locks of several keys as the options say, all or none, without blocking, and waits no longer than
     * this in total. The future is as for {@link #leaseAsync(String, Duration, LockOptions)}.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @param wait the longest wait, counted in milliseconds, rounded up; with 0 or less, it does not wait
     * @param options how all of them are to be held, and by which owner
     * @return the lease to come
     */
    public CompletableFuture<Lease> leaseAllAsync(Collection<String> keys, Duration wait, LockOptions options) {
        return new Acquire.Future(link, Keys.all(keys), options, LockOptions.wait(wait));
    }

    /**
     * Acquires the lock of one of several keys: the one that becomes free first. Waits without bound, or until this thread
     * is interrupted. Other waiters of each key are not overtaken.
     *
     * @param keys 1 to 64 different ones
     * @param options how the lock is to be held, and by which owner
     * @return the lease, which names its {@linkplain Lease#key key}; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     */
    public Lease leaseAny(Collection<String> keys, LockOptions options) throws InterruptedException {
        return begin(Keys.any(keys), options, -1).awaited().must();
    }

    /**
     * Acquires the lock of one of several keys, and waits no longer than this, or until this thread is interrupted.
     *
     * @param keys 1 to 64 different ones
     * @param wait the longest wait, counted in milliseconds, rounded up; with 0 or less, it does not wait
     * @param options how the lock is to be held, and by which owner
     * @return the lease, to be closed; or nothing
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     */
    public Optional<Lease> tryLeaseAny(Collection<String> keys, Duration wait, LockOptions options)
            throws InterruptedException {
        return Optional.ofNullable(begin(Keys.any(keys), options, LockOptions.wait(wait)).awaited().lease());
    }

    /**
     * Acquires the lock of one of several keys without blocking, and waits no longer than this. The future is as for {@link
     * #leaseAsync(String, Duration, LockOptions)}.
     *
     * @param keys 1 to 64 different ones
     * @param wait the longest wait, counted in milliseconds, rounded up; with 0 or less, it does not wait
     * @param options how the lock is to be held, and by which owner
     * @return the lease to come
     */
    public CompletableFuture<Lease> leaseAnyAsync(Collection<String> keys, Duration wait, LockOptions options) {
        return new Acquire.Future(link, Keys.any(keys), options, LockOptions.wait(wait));
    }

    private Acquire begin(Keys keys, LockOptions options, long wait) {
        return Acquire.of(link, keys, options, wait, "Lease", Owner.ofThread(), null, null);
    }

    /**
     * Returns a candidate for leadership. The leader is the one holder of the lock of this key, across all programs and
     * hosts that use the same store. The candidate does nothing until it is run or started.
     *
     * @param key the lock's name
     * @param listener the work of the leader
     * @return a candidate
     */
    public Election election(String key, Election.Listener listener) {
        return election(key, listener, LockOptions.defaults());
    }

    /**
     * Returns a candidate for leadership, with options for its lock.
     *
     * @param key the lock's name
     * @param listener the work of the leader
     * @param options the TTL, and a further listener of losses. An owner, shared and fixed are refused
     * @return a candidate
     */
    public Election election(String key, Election.Listener listener, LockOptions options) {
        return new Election(link, Keys.of(key), Objects.requireNonNull(listener, "listener"), options);
    }

    /**
     * Ends all holds of a lock on this host, of any client; see also {@link SidecarSemaphore#forceUnlock}. Only root, the
     * daemon's own user and its {@code operators} may do that. The holders are told that they have lost the
     * lock, with the reason {@code forced}.
     *
     * @param key the lock's name
     * @return the number of holds that were ended
     * @throws LockException with the code {@link LockException.Code#DENIED} if this user may not do that
     */
    public long forceUnlock(String key) {
        return forceUnlock(key, 0);
    }

    /**
     * Ends the holds of a lock that have this fence, like {@link #forceUnlock(String)}.
     *
     * @param key the lock's name
     * @param fence the fence of the holds; 0 for all holds of the lock
     * @return the number of holds that were ended
     */
    public long forceUnlock(String key, long fence) {
        return link.forceUnlock(Keys.of(key), Codes.EXCLUSIVE, fence);
    }

    /**
     * Frees a lock that is still {@linkplain LockOptions#keep kept} after its release, or after the end of its process. It
     * must belong to the same user.
     *
     * @param key the lock's name
     * @param fence the fence of the hold
     * @throws NotHeldException if this host keeps no hold with this fence
     * @throws LockException with the code {@link LockException.Code#DENIED} if it is another user's
     */
    public void releaseDetached(String key, long fence) {
        link.ask(Codes.RELEASE, Keys.of(key).utf8[0], 0, fence, Codes.DETACHED);
    }

    /**
     * Pings the daemon. Blocks no longer than the client's timeout.
     *
     * @return how long it took
     * @throws UnavailableException if there was no answer
     */
    public Duration ping() {
        long start = System.nanoTime();
        link.ask(Codes.PING, null);
        return Duration.ofNanos(System.nanoTime() - start);
    }

    /**
     * Ends the connection: the daemon releases everything that is held on it. Every wait fails with the code {@link
     * LockException.Code#CLOSED}, and so does every later request of this client. Blocks until the socket is closed.
     * Losses are not reported. Idempotent.
     */
    @Override
    public void close() {
        link.close();
    }

    @Override
    public String toString() {
        return "Sidecar[" + link.setup.path() + "]";
    }
}
