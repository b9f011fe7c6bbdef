package io.locksidecar;

import java.util.concurrent.locks.ReentrantLock;

/**
 * A mutex that a {@code try} statement unlocks: {@code mu.lock(); try (mu) { ... }}. Threads hold it for microseconds.
 *
 * <p>A virtual thread spins until it gets the mutex, and keeps its carrier thread meanwhile. If it waited in a queue instead, it
 * would give up its carrier, and might not get one again for a long time, because other virtual threads compute or are pinned.
 * The threads behind it in the queue, such as the reader of the connection, would wait as long.
 */
final class Mutex extends ReentrantLock implements AutoCloseable {
    private static final long serialVersionUID = 1L;
    /** The number of spins before a yield. They take about a millisecond; a running thread unlocks sooner. Tests change it. */
    static int spins = 1 << 15;

    @Override
    public void lock() {
        for (int n = 1; !tryLock(); n++) {
            if (!Wait.isVirtual(Thread.currentThread())) {
                super.lock();
                return;
            } else if (n % spins == 0) {
                Thread.yield(); // the thread that holds the mutex may be virtual, and may have lost its carrier
            } else {
                Thread.onSpinWait();
            }
        }
    }

    @Override
    public void close() {
        unlock();
    }
}
