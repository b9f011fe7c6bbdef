package io.locksidecar;

import java.util.concurrent.locks.ReentrantLock;

/**
 * A lock for {@code try (mu)}, which unlocks it at its end. The statement before it is {@code mu.lock()}. It is no monitor,
 * because a virtual thread that waits for one keeps its carrier from other threads.
 */
final class Mutex extends ReentrantLock implements AutoCloseable {
    private static final long serialVersionUID = 1L;

    @Override
    public void close() {
        unlock();
    }
}
