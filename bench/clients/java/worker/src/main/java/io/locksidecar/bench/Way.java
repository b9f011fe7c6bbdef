package io.locksidecar.bench;

import io.locksidecar.Sidecar;
import io.locksidecar.SidecarLock;
import java.nio.file.Path;
import java.util.concurrent.locks.Lock;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** A way to acquire locks, as a program would use it: one client per process, which all its callers share. */
interface Way {
    /** One lock, which callers may share. */
    interface One {
        void acquire() throws Exception;

        void release() throws Exception;

        /** Returns the fence while the caller holds the lock; 0 if there is none. */
        long fence();
    }

    /** An exclusive lock of a key, or one side of its read-write lock. */
    enum How { MUTEX, READ, WRITE }

    One lock(String key, How how);

    static Way of(String name, String address) throws Exception {
        return switch (name) {
            case "java" -> sidecar(address, true);
            case "java-unconfirmed" -> sidecar(address, false);
            case "redisson" -> redisson(address);
            case "curator" -> curator(address);
            default -> throw new IllegalArgumentException("no way to locks is called " + name);
        };
    }

    private static Way sidecar(String address, boolean confirm) {
        Sidecar sidecar = Sidecar.builder().socket(Path.of(address)).confirm(confirm).build();
        return (key, how) -> {
            return new Plain(how == How.READ ? sidecar.readWriteLock(key).readLock() : sidecar.lock(key));
        };
    }

    /**
     * A lock of the Java interface, this product's or another one. Where only C1 compiles, a class takes much less time to make
     * than a lambda that captures.
     */
    record Plain(Lock lock) implements One {
        @Override
        public void acquire() {
            lock.lock();
        }

        @Override
        public void release() {
            lock.unlock();
        }

        @Override
        public long fence() {
            return lock instanceof SidecarLock own ? own.fence() : 0;
        }
    }

    /** Uses Redisson with its default pool and its default watchdog. */
    private static Way redisson(String address) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address);
        RedissonClient redisson = Redisson.create(config);
        return (key, how) -> new Plain(switch (how) {
            case MUTEX -> redisson.getLock(key);
            case READ -> redisson.getReadWriteLock(key).readLock();
            case WRITE -> redisson.getReadWriteLock(key).writeLock();
        });
    }

    /** Uses Curator with its default session. Of its locks, only the mutex is comparable, which is exclusive. */
    private static Way curator(String address) throws InterruptedException {
        CuratorFramework curator = CuratorFrameworkFactory.newClient(address, new ExponentialBackoffRetry(50, 5));
        curator.start();
        curator.blockUntilConnected();
        return (key, how) -> {
            if (how != How.MUTEX) {
                throw new IllegalArgumentException("InterProcessMutex has no shared mode");
            }
            InterProcessMutex mutex = new InterProcessMutex(curator, "/bench/" + key);
            return new One() {
                @Override
                public void acquire() throws Exception {
                    mutex.acquire();
                }

                @Override
                public void release() throws Exception {
                    mutex.release();
                }

                @Override
                public long fence() {
                    return 0;
                }
            };
        };
    }
}
