package io.locksidecar;

import java.util.concurrent.locks.ReentrantLock;

/**
 * A lock for {@code try (mu)}, which unlocks it at its end. The statement before it is {@code mu.lock()}. It is held for
 * microseconds.
 *
 * <p>A virtual thread that waited in a queue, or for a monitor, would give up its carrier, and might not get one again for long:
 * other virtual threads may compute, or be pinned. The threads behind it in the queue would wait as long, and with them the
 * reader of the connection. So a virtual thread keeps its carrier, and spins.
 */
final class Mutex extends ReentrantLock implements AutoCloseable {
    private static final long serialVersionUID = 1L;
    /** So many spins take about a millisecond. No running thread has the lock for that long. Tests change it. */
    static int spins = 1 << 15;

    @Override
    public void lock() {
        for (int n = 1; !tryLock(); n++) {
            if (!Wait.isVirtual(Thread.currentThread())) {
                super.lock();
                return;
            } else if (n % spins == 0) {
                Thread.yield(); // in case the thread with the lock is virtual, and has no carrier after all
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
