package io.locksidecar;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * A distributed {@link ReadWriteLock}: any number of readers, or one writer, across all programs and hosts that use
 * the same store. Waiters are served in the order of their arrival; readers do not overtake a waiting writer.
 *
 * <p>Both locks are re-entrant, and an owner that holds the write lock may acquire the read lock too. Releasing
 * the write lock then leaves the read lock: a <em>downgrade</em>, with no other owner in between, and with the same fence.
 *
 * <pre>{@code
 * lock.writeLock().lock();
 * try {
 *     refresh();
 *     lock.readLock().lock(); // while still writing
 * } finally {
 *     lock.writeLock().unlock(); // others may read now
 * }
 * try {
 *     use();
 * } finally {
 *     lock.readLock().unlock();
 * }
 * }</pre>
 *
 * <p>A reader that asks for the write lock is refused at once, with the code {@link LockException.Code#UPGRADE}: two readers
 * that waited to become writers would wait for each other forever. Both locks are one handle: see {@link SidecarLock} for its owners. {@link
 * Sidecar#lock} of the same key is the write lock of another handle.
 */
public final class SidecarReadWriteLock implements ReadWriteLock {
    private final SidecarLock read;
    private final SidecarLock write;

    SidecarReadWriteLock(Link link, Keys key, LockOptions options) {
        SidecarLock.Handle handle = new SidecarLock.Handle("SidecarReadWriteLock");
        this.read = new SidecarLock(link, key, options.shared(true), handle);
        this.write = new SidecarLock(link, key, options.shared(false), handle);
    }

    /**
     * Returns the lock's name.
     *
     * @return the key
     */
    public String key() {
        return read.key();
    }

    @Override
    public SidecarLock readLock() {
        return read;
    }

    @Override
    public SidecarLock writeLock() {
        return write;
    }

    @Override
    public String toString() {
        return "SidecarReadWriteLock[" + key() + "]";
    }
}
