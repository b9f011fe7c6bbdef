package io.locksidecar;

import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The client's own executor of callbacks. It has a bounded number of daemon threads, which end when they are idle. Callbacks
 * that come while all of them are busy wait in a queue.
 *
 * <p>Callbacks may block, and even wait for one another. So if no callback of the queue has started for a while, one more
 * thread starts. It runs the queued callbacks and ends. Blocking callbacks delay those behind them, but never stop them.
 */
final class Callbacks {
    /** The number of threads, unless callbacks block for long. */
    static final int THREADS = 64;
    /** Milliseconds after which a queue that makes no progress gets one more thread. */
    static final long PAUSE = 1000;

    private static final long IDLE = 10; // seconds

    private final String name;
    private final long pause;
    private final LinkedBlockingQueue<Runnable> queue = new LinkedBlockingQueue<>();
    private final ThreadPoolExecutor pool;
    private final AtomicBoolean watched = new AtomicBoolean();

    Callbacks(String name, int threads, long pause) {
        this.name = name;
        this.pause = pause;
        this.pool = new ThreadPoolExecutor(threads, threads, IDLE, TimeUnit.SECONDS, queue, r -> thread(r, name));
        pool.allowCoreThreadTimeOut(true);
    }

    /** Returns a daemon thread that is not started. */
    static Thread thread(Runnable r, String name) {
        Thread t = new Thread(r, name);
        t.setDaemon(true);
        return t;
    }

    void execute(Runnable callback) {
        pool.execute(callback);
        if (!queue.isEmpty() && pool.getPoolSize() == pool.getMaximumPoolSize()) {
            watch();
        }
    }

    /** Lets idle threads end at once. Queued and later callbacks still run. Does not wait. */
    void close() {
        pool.setKeepAliveTime(1, TimeUnit.MILLISECONDS);
    }

    /** Starts the thread that checks whether the queue makes progress, until the queue is empty. */
    private void watch() {
        if (watched.compareAndSet(false, true)) {
            try {
                thread(this::checkQueue, name + "-watch").start();
            } catch (RuntimeException | Error e) { // the next callback that is queued tries it again
                watched.set(false);
                Link.LOG.log(System.Logger.Level.WARNING, "cannot start the thread that watches callbacks", e);
            }
        }
    }

    private void checkQueue() {
        Runnable first = queue.peek();
        while (first != null) {
            try {
                Thread.sleep(pause);
                if (queue.peek() == first) {
                    thread(this::help, name).start();
                }
            } catch (InterruptedException e) {
                continue; // the program has interrupted its whole thread group
            } catch (RuntimeException | Error e) {
                Link.LOG.log(System.Logger.Level.WARNING, "cannot start a thread for a callback", e);
            }
            first = queue.peek();
        }
        watched.set(false);
        if (queue.peek() != null) {
            watch();
        }
    }

    private void help() {
        for (Runnable next = queue.poll(); next != null; next = queue.poll()) {
            next.run();
        }
    }
}
