package io.locksidecar;

import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The client's own executor of callbacks. It has a bounded number of daemon threads, which end when they are idle; callbacks
 * that come while all of them are busy wait in a queue.
 *
 * <p>Callbacks may block, and even wait for one another. So whenever no callback in the queue has begun for a while, one
 * more thread starts, which runs what is queued and ends. Callbacks that block delay those behind them, but never stop them.
 */
final class Callbacks implements Executor {
    /** Threads, unless callbacks block for long. */
    static final int THREADS = 64;
    /** Milliseconds after which a queue that does not move gets one more thread. */
    static final long PAUSE = 1000;

    private static final System.Logger LOG = System.getLogger("io.locksidecar");
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

    private static Thread thread(Runnable r, String name) {
        Thread t = new Thread(r, name);
        t.setDaemon(true);
        return t;
    }

    @Override
    public void execute(Runnable callback) {
        pool.execute(callback);
        if (!queue.isEmpty() && pool.getPoolSize() == pool.getMaximumPoolSize()) {
            watch();
        }
    }

    /** Ends idle threads at once. Callbacks that are queued, or come later, still run. Does not wait. */
    void close() {
        pool.setKeepAliveTime(1, TimeUnit.MILLISECONDS);
    }

    /** Has a thread look whether the queue moves, for as long as there is one. */
    private void watch() {
        if (watched.compareAndSet(false, true)) {
            try {
                thread(this::look, name + "-watch").start();
            } catch (RuntimeException | Error e) { // the next one that is queued tries it again
                watched.set(false);
                LOG.log(System.Logger.Level.WARNING, "no thread can be had to watch callbacks", e);
            }
        }
    }

    private void look() {
        Runnable first = queue.peek();
        while (first != null) {
            try {
                Thread.sleep(pause);
                if (queue.peek() == first) {
                    thread(this::help, name).start();
                }
            } catch (InterruptedException e) {
                continue; // somebody who interrupts whole groups
            } catch (RuntimeException | Error e) {
                LOG.log(System.Logger.Level.WARNING, "no thread can be had for a callback", e);
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
