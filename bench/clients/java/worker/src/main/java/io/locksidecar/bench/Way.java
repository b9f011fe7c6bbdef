package io.locksidecar.bench;

import io.locksidecar.Sidecar;
import io.locksidecar.SidecarLock;
import java.nio.file.Path;
import java.util.concurrent.locks.Lock;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** A way to locks, as a program would go it: one client a process, one lock object a key. */
interface Way {
    /** One that is held now has this fence; 0 when there is none. */
    interface Held {
        long fence();
    }

    record One(Lock lock, Held held) {}

    One lock(String key);

    static Way of(String name, String address) {
        return switch (name) {
            case "java" -> sidecar(address);
            case "redisson" -> redisson(address);
            default -> throw new IllegalArgumentException("no way to locks is called " + name);
        };
    }

    private static Way sidecar(String address) {
        Sidecar sidecar = Sidecar.create(Path.of(address));
        return key -> {
            SidecarLock lock = sidecar.lock(key);
            return new One(lock, lock::fence);
        };
    }

    /** With its default pool and its default watchdog. */
    private static Way redisson(String address) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address);
        RedissonClient redisson = Redisson.create(config);
        return key -> {
            RLock lock = redisson.getLock(key);
            return new One(lock, () -> 0);
        };
    }
}
