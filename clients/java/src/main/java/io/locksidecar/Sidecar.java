package io.locksidecar;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

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
 * <p>It connects when it is first needed, and again after the daemon has restarted; nothing that was held before
 * is believed then. All its methods may be called by any thread. It has one thread of its own, a daemon thread,
 * and those of its executor. A client that is not closed lives as long as the process, whether it is reachable
 * or not.
 */
public final class Sidecar implements AutoCloseable {
    private final Link link;
    private final ThreadPoolExecutor own;

    private Sidecar(Builder b) {
        ThreadPoolExecutor pool = null;
        Executor executor = b.executor;
        if (executor == null) {
            pool = callbacks();
            executor = pool;
        }
        this.own = pool;
        Path path = b.path != null ? b.path : SocketPath.byDefault();
        this.link = new Link(new Link.Setup(path, b.name, b.label, b.timeout, b.patience, executor));
    }

    /** Threads for what is the user's: none while there is nothing to run. */
    private static ThreadPoolExecutor callbacks() {
        ThreadPoolExecutor pool = new ThreadPoolExecutor(8, 8, 10, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), r -> {
            Thread t = new Thread(r, "locksidecar-callback");
            t.setDaemon(true);
            return t;
        });
        pool.allowCoreThreadTimeOut(true);
        return pool;
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
     * Returns what makes clients that are set up in another way.
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
         * Sets who we are in the daemon's lists, for people; by default the name of the main class or jar.
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
         * Sets what runs listeners of losses and completes futures and stages; by default up to 8 daemon threads of
         * the client's own, which end when they are idle.
         *
         * @param executor must not run tasks on the thread that hands them over
         * @return this
         */
        public Builder executor(Executor executor) {
            this.executor = Objects.requireNonNull(executor, "executor");
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
        return new SidecarLock(link, Key.of(key), Objects.requireNonNull(options, "options"));
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
        return new SidecarReadWriteLock(link, Key.of(key), Objects.requireNonNull(options, "options"));
    }

    /**
     * Acquires a lock, and waits without bound, or until this thread is interrupted. The lease is its own owner:
     * it waits for any other lease or lock of the key, this thread's too.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return what is held; to be closed
     * @throws InterruptedException if the thread is interrupted; nothing is held then
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
     * @throws NotAcquiredException if the daemon allows no wait that long
     * @throws LockException if it cannot be had for another reason
     */
    public Lease lease(String key, LockOptions options) throws InterruptedException {
        Hold hold = acquire(key, options, -1);
        if (hold == null) {
            throw new NotAcquiredException("lock \"" + key + "\": the longest wait that the daemon allows is over");
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
     * @throws NotAcquiredException if it could not be had in time
     * @throws LockException if it cannot be had for another reason
     */
    public Lease lease(String key, Duration wait) throws InterruptedException {
        return tryLease(key, wait, LockOptions.defaults())
                .orElseThrow(() -> new NotAcquiredException("lock \"" + key + "\" could not be had within " + wait));
    }

    /**
     * Acquires a lock if it is free and nobody waits for it. Blocks no longer than the daemon needs to answer.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return what is held, to be closed; or nothing
     * @throws InterruptedException if the thread is interrupted; nothing is held then
     * @throws LockException if it cannot be told
     */
    public Optional<Lease> tryLease(String key) throws InterruptedException {
        return tryLease(key, Duration.ZERO, LockOptions.defaults());
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
     * @throws LockException if it cannot be told, or never be had
     */
    public Optional<Lease> tryLease(String key, Duration wait, LockOptions options) throws InterruptedException {
        return Optional.ofNullable(acquire(key, options, Times.wait(wait)))
                .map(hold -> new Lease(hold, options.isShared()));
    }

    private Hold acquire(String key, LockOptions options, long wait) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        Acquire a = Holding.acquire(link, Key.of(key), options.owner(), options, wait, null);
        a.start();
        return Holding.hold(a.get(), options);
    }

    /**
     * Acquires a lock without blocking, and waits for it without bound.
     *
     * @param key the lock's name: 1 to 512 bytes in UTF-8, without control characters
     * @return see {@link #leaseAsync(String, Duration, LockOptions)}
     * @throws InvalidException if the key is none
     */
    public CompletableFuture<Lease> leaseAsync(String key) {
        return new LeaseFuture(link, Key.of(key), LockOptions.defaults(), -1);
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
        return new LeaseFuture(link, Key.of(key), options, Times.wait(wait));
    }

    /**
     * Asks the daemon for a sign of life. Blocks no longer than the client's timeout.
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
     * Ends the connection: the daemon releases everything that is held on it, and every wait fails with {@link
     * ConnectionLostException}, as does everything asked of this client from now on. Blocks until the socket is
     * closed. Nobody is told of losses. Idempotent.
     */
    @Override
    public void close() {
        link.close();
        if (own != null) {
            own.shutdown(); // what was handed over runs; what comes later has threads of its own
        }
    }

    Link link() {
        return link;
    }

    @Override
    public String toString() {
        return "Sidecar[" + link.path() + "]";
    }
}
