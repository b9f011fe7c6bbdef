package io.locksidecar;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
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
    private static final String LONGEST = "the longest wait that the daemon allows is over";

    private final Link link;
    private Sidecar(Builder b) {
        Path path = b.path != null ? b.path : SocketPath.byDefault();
        this.link = new Link(new Link.Setup(path, b.name, b.label, b.timeout, b.patience, b.executor, b.traceparent));
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
        private Executor executor;
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
            this.timeout = Times.nanos(Times.positive(timeout, "a timeout"));
            return this;
        }

        /** Sets for how long an acquire puts up with a daemon that is not there, or is going: for tests. */
        Builder patience(Duration patience) {
            this.patience = Times.nanos(patience);
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
     * Connects now, if there is no connection, rather than with the first acquire: to learn at the start of a
     * program that there is no daemon. Makes one attempt, and blocks no longer than the client's timeout.
     *
     * @return this
     * @throws UnavailableException if no daemon answers
     * @throws ProtocolException if the daemon and this client have no version of the protocol in common
     * @throws LimitException if the daemon lets nobody else in
     */
    public Sidecar connect() {
        link.connection();
        return this;
    }

    /**
     * Returns where the daemon's socket is looked for.
     *
     * @return the socket's path
     */
    public Path socket() {
        return link.path();
    }

    /**
     * Returns a handle for an exclusive lock of the thread that uses it. Nothing is acquired, and nothing sent.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return a handle
     * @throws InvalidException if the key is none
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
     * @throws InvalidException if the key is none
     */
    public SidecarLock lock(String key, LockOptions options) {
        return new SidecarLock(link, Keys.of(key), Objects.requireNonNull(options, "options"), new Handle("SidecarLock"));
    }

    /**
     * Returns a handle for a lock with readers and writers. Nothing is acquired, and nothing sent.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return a handle
     * @throws InvalidException if the key is none
     */
    public SidecarReadWriteLock readWriteLock(String key) {
        return readWriteLock(key, LockOptions.defaults());
    }

    /**
     * Returns a handle for a lock with readers and writers. Nothing is acquired, and nothing sent.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @param options how it is to be held; whether shared is said by the lock
     * @return a handle
     * @throws InvalidException if the key is none
     */
    public SidecarReadWriteLock readWriteLock(String key, LockOptions options) {
        return new SidecarReadWriteLock(link, Keys.of(key), Objects.requireNonNull(options, "options"));
    }

    /**
     * Returns a handle for a semaphore. Nothing is acquired, and nothing sent.
     *
     * @param key the semaphore's name: 1 to 512 bytes in UTF-8, without control characters
     * @param permits how many permits it has over all hosts, 1 to 10,000; every caller says the same
     * @return a handle
     * @throws InvalidException if the key is none, or the number out of range
     */
    public SidecarSemaphore semaphore(String key, int permits) {
        return semaphore(key, permits, LockOptions.defaults());
    }

    /**
     * Returns a handle for a semaphore. Nothing is acquired, and nothing sent.
     *
     * @param key the semaphore's name: 1 to 512 bytes in UTF-8, without control characters
     * @param permits how many permits it has over all hosts, 1 to 10,000; every caller says the same
     * @param options how each permit is to be held
     * @return a handle
     * @throws InvalidException if the key is none, or the number out of range
     * @throws IllegalArgumentException if the options say shared: that is a lock's
     */
    public SidecarSemaphore semaphore(String key, int permits, LockOptions options) {
        return new SidecarSemaphore(link, Keys.permit(key, permits), Objects.requireNonNull(options, "options"));
    }

    /**
     * Acquires a lock, and waits without bound, or until this thread is interrupted. The lease is its own owner:
     * it waits for any other lease or lock of the key, except for one that this thread itself would have to release.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return what is held; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws AlreadyHeldException if this thread holds it already, by another lock or lease without a named owner
     * @throws LostException if such a lock or lease of this thread lost it and has not released it since
     * @throws LockException if it cannot be had
     */
    public Lease lease(String key) throws InterruptedException {
        return lease(key, LockOptions.defaults());
    }

    /**
     * Acquires a lock as the options say, and waits without bound, or until this thread is interrupted.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @param options how it is to be held, and by whom
     * @return what is held; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws AlreadyHeldException if this thread holds it already, by another lock or lease without a named owner
     * @throws LostException if the owner that the options name, or another lock or lease of this thread, lost it and has not
     *     released it since
     * @throws NotAcquiredException if the daemon allows no wait that long
     * @throws LockException if it cannot be had for another reason
     */
    public Lease lease(String key, LockOptions options) throws InterruptedException {
        Acquire a = acquire(Keys.of(key), options, -1);
        Hold hold = Holding.hold(a.outcome(), options);
        if (hold == null) {
            throw Holding.notAcquired(a.keys(), a.outcome(), LONGEST);
        }
        return new Lease(hold, options.isShared());
    }

    /**
     * Acquires a lock, and waits for it no longer than so long, or until this thread is interrupted.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @param wait how long, counted in milliseconds, rounded up
     * @return what is held; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws AlreadyHeldException if this thread holds it already, by another lock or lease without a named owner
     * @throws LostException if such a lock or lease of this thread lost it and has not released it since
     * @throws NotAcquiredException if it could not be had in time
     * @throws LockException if it cannot be had for another reason
     */
    public Lease lease(String key, Duration wait) throws InterruptedException {
        return tryLease(key, wait, LockOptions.defaults())
                .orElseThrow(() -> new NotAcquiredException("lock \"" + key + "\" was not acquired within " + wait));
    }

    /**
     * Acquires a lock if it is free and nobody waits for it. Blocks no longer than the daemon needs to answer, and no
     * longer than the client's timeout. An interrupt is kept for later.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return what is held, to be closed; or nothing
     * @throws LostException if another lock or lease of this thread lost it and has not released it since
     * @throws LockException if it cannot be told
     */
    public Optional<Lease> tryLease(String key) {
        return tryLease(key, LockOptions.defaults());
    }

    /**
     * Acquires a lock as the options say if it can be had at once. Blocks no longer than the daemon needs to answer, and
     * no longer than the client's timeout. An interrupt is kept for later.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @param options how it is to be held, and by whom
     * @return what is held, to be closed; or nothing
     * @throws LostException if the owner that the options name, or another lock or lease of this thread, lost it and has not
     *     released it since
     * @throws LockException if it cannot be told, or never be had
     */
    public Optional<Lease> tryLease(String key, LockOptions options) {
        return leased(tried(Keys.of(key), options), options);
    }

    /**
     * Acquires a lock as the options say, and waits for it no longer than so long, or until this thread is
     * interrupted.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @param wait how long, counted in milliseconds, rounded up; nothing or less is a try
     * @param options how it is to be held, and by whom
     * @return what is held, to be closed; or nothing
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws LostException if the owner that the options name, or another lock or lease of this thread, lost it and has not
     *     released it since
     * @throws AlreadyHeldException if this thread holds it already, by another lock or lease without a named owner, and this
     *     is not a try
     * @throws LockException if it cannot be told, or never be had
     */
    public Optional<Lease> tryLease(String key, Duration wait, LockOptions options) throws InterruptedException {
        return leased(acquire(Keys.of(key), options, Times.wait(wait)).outcome(), options);
    }

    private static Optional<Lease> leased(Object outcome, LockOptions options) {
        return Optional.ofNullable(Holding.hold(outcome, options)).map(hold -> new Lease(hold, options.isShared()));
    }

    /** Makes an acquire and waits for its outcome. */
    private Acquire acquire(Keys keys, LockOptions options, long wait) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        Acquire a = begun(keys, options, wait);
        a.get();
        return a;
    }

    /** Makes a try, and returns its outcome. */
    private Object tried(Keys keys, LockOptions options) {
        return begun(keys, options, 0).getUninterruptibly();
    }

    private Acquire begun(Keys keys, LockOptions options, long wait) {
        Acquire a = Holding.acquire(link, keys, options, wait, keys.many() ? "Leases" : "Lease", null);
        a.start();
        return a;
    }

    /**
     * Acquires a lock without blocking, and waits for it without bound.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return see {@link #leaseAsync(String, Duration, LockOptions)}
     * @throws InvalidException if the key is none
     */
    public CompletableFuture<Lease> leaseAsync(String key) {
        return future(key, LockOptions.defaults(), -1);
    }

    /**
     * Acquires a lock as the options say, without blocking, and waits for it no longer than so long.
     *
     * <p>The future completes on the client's executor: with the lease, which is to be closed; or with what the
     * blocking methods throw, {@link NotAcquiredException} if the wait is over. Cancelling it, or completing it in
     * another way (as {@link CompletableFuture#orTimeout} does), withdraws the request, and a grant that crosses
     * that is released. Cancelling a stage that depends on it does not.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @param wait how long, counted in milliseconds, rounded up; nothing or less is a try
     * @param options how it is to be held, and by whom
     * @return the lease to come
     * @throws InvalidException if the key is none
     */
    public CompletableFuture<Lease> leaseAsync(String key, Duration wait, LockOptions options) {
        return future(key, options, Times.wait(wait));
    }

    private CompletableFuture<Lease> future(String key, LockOptions options, long wait) {
        return new LeaseFuture<>(link, Keys.of(key), options, wait, outcome -> {
            Hold hold = Holding.hold(outcome, options);
            return hold == null ? null : new Lease(hold, options.isShared());
        }, Lease::releaseAsync);
    }

    /**
     * Acquires the locks of several keys, all or none, and waits without bound, or until this thread is interrupted.
     * The leases are their own owner: they wait for any other lease or lock of the keys, except for one that this thread
     * itself would have to release.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @return what is held; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws AlreadyHeldException if this thread holds one of them already, by another lock or lease without a named owner
     * @throws LockException if they cannot be had
     */
    public Leases leaseAll(Collection<String> keys) throws InterruptedException {
        return leaseAll(keys, LockOptions.defaults());
    }

    /**
     * Acquires the locks of several keys as the options say, all or none, and waits without bound, or until this
     * thread is interrupted.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @param options how all of them are to be held, and by whom
     * @return what is held; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws AlreadyHeldException if this thread holds one of them already, by another lock or lease without a named owner
     * @throws LostException if the owner that the options name, or another lock or lease of this thread, lost one of them and
     *     has not released it since
     * @throws NotAcquiredException if the daemon allows no wait that long
     * @throws UnavailableException if a store or the daemon does not answer; or if one of the keys was lost while
     *     another was waited for
     * @throws LockException if they cannot be had for another reason
     */
    public Leases leaseAll(Collection<String> keys, LockOptions options) throws InterruptedException {
        return must(acquire(Keys.of(keys), options, -1), options, LONGEST);
    }

    /**
     * Acquires the locks of several keys, all or none, and waits no longer than so long for the whole, or until this
     * thread is interrupted.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @param wait how long, counted in milliseconds, rounded up
     * @return what is held; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws AlreadyHeldException if this thread holds one of them already, by another lock or lease without a named owner
     * @throws NotAcquiredException if they could not be had in time; it says which key was in the way
     * @throws LockException if they cannot be had for another reason
     */
    public Leases leaseAll(Collection<String> keys, Duration wait) throws InterruptedException {
        Acquire a = acquire(Keys.of(keys), LockOptions.defaults(), Times.wait(wait));
        return must(a, LockOptions.defaults(), "not acquired within " + wait);
    }

    private static Leases must(Acquire a, LockOptions options, String why) {
        Hold[] holds = Holding.holds(a.outcome());
        if (holds == null) {
            throw Holding.notAcquired(a.keys(), a.outcome(), why);
        }
        return new Leases(holds, options);
    }

    /**
     * Acquires the locks of several keys, all or none, if all are free and nobody waits for them. Blocks no longer
     * than the daemon needs to answer, and no longer than the client's timeout. An interrupt is kept for later.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @return what is held, to be closed; or nothing
     * @throws LockException if it cannot be told
     */
    public Optional<Leases> tryLeaseAll(Collection<String> keys) {
        Object outcome = tried(Keys.of(keys), LockOptions.defaults());
        return Optional.ofNullable(Holding.holds(outcome)).map(holds -> new Leases(holds, LockOptions.defaults()));
    }

    /**
     * Acquires the locks of several keys as the options say, all or none, and waits no longer than so long for the
     * whole, or until this thread is interrupted.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @param wait how long, counted in milliseconds, rounded up; nothing or less is a try
     * @param options how all of them are to be held, and by whom
     * @return what is held, to be closed; or nothing
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws LostException if the owner that the options name, or another lock or lease of this thread, lost one of them and
     *     has not released it since
     * @throws AlreadyHeldException if this thread holds one of them already, by another lock or lease without a named owner,
     *     and this is not a try
     * @throws LockException if it cannot be told, or never be had
     */
    public Optional<Leases> tryLeaseAll(Collection<String> keys, Duration wait, LockOptions options)
            throws InterruptedException {
        Acquire a = acquire(Keys.of(keys), options, Times.wait(wait));
        return Optional.ofNullable(Holding.holds(a.outcome())).map(holds -> new Leases(holds, options));
    }

    /**
     * Acquires the locks of several keys, all or none, without blocking, and waits for them without bound.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @return see {@link #leaseAllAsync(Collection, Duration, LockOptions)}
     * @throws InvalidException if they are no such keys
     */
    public CompletableFuture<Leases> leaseAllAsync(Collection<String> keys) {
        return future(Keys.of(keys), LockOptions.defaults(), -1);
    }

    /**
     * Acquires the locks of several keys as the options say, all or none, without blocking, and waits no longer than
     * so long for the whole. The future is as for {@link #leaseAsync(String, Duration, LockOptions)}.
     *
     * @param keys 1 to 1,024 different ones, in any order
     * @param wait how long, counted in milliseconds, rounded up; nothing or less is a try
     * @param options how all of them are to be held, and by whom
     * @return the leases to come
     * @throws InvalidException if they are no such keys
     */
    public CompletableFuture<Leases> leaseAllAsync(Collection<String> keys, Duration wait, LockOptions options) {
        return future(Keys.of(keys), options, Times.wait(wait));
    }

    private CompletableFuture<Leases> future(Keys keys, LockOptions options, long wait) {
        return new LeaseFuture<>(link, keys, options, wait, outcome -> {
            Hold[] holds = Holding.holds(outcome);
            return holds == null ? null : new Leases(holds, options);
        }, Leases::releaseAsync);
    }

    /**
     * Returns a candidate for leadership. The leader is the one holder of the lock of this key, over all programs and
     * hosts that use the same store. The candidate does nothing until it is run or started.
     *
     * @param key what is competed for; the lock's name
     * @param listener what the leader does
     * @return a candidate
     * @throws InvalidException if the key is none
     */
    public Election election(String key, Election.Listener listener) {
        return election(key, listener, LockOptions.defaults());
    }

    /**
     * Returns a candidate for being the leader, with options for its lock.
     *
     * @param key what is competed for; the lock's name
     * @param listener what the leader does
     * @param options the TTL, and who else is told of losses; an owner, shared and fixed are refused
     * @return a candidate
     * @throws InvalidException if the key is none, or the options are not for an election
     */
    public Election election(String key, Election.Listener listener, LockOptions options) {
        return new Election(new Campaign(link, Keys.of(key), Objects.requireNonNull(listener, "listener"), options));
    }

    /**
     * Pings the daemon. Blocks no longer than the client's timeout.
     *
     * @return how long it took
     * @throws UnavailableException if there was none
     */
    public Duration ping() {
        long start = System.nanoTime();
        link.ask(Codes.PING, null);
        return Duration.ofNanos(System.nanoTime() - start);
    }

    /**
     * Ends the connection: the daemon releases everything that is held on it. Every wait fails with {@link
     * ConnectionLostException}, and so does every later request of this client. Blocks until the socket is closed.
     * Losses are not reported. Idempotent.
     */
    @Override
    public void close() {
        link.close();
    }

    Link link() {
        return link;
    }

    @Override
    public String toString() {
        return "Sidecar[" + link.path() + "]";
    }
}
