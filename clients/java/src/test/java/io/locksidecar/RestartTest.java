package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Tests that take seconds, since a daemon after a kill waits for the stated validity. All of them run at once. */
@Execution(ExecutionMode.CONCURRENT)
class RestartTest {
    /** Nanoseconds; the embedded store never states a longer validity. */
    private static final long SESSION = 10_000_000_000L;

    private static Sidecar client(Daemon d, Duration timeout) {
        return Sidecar.builder()
                .socket(d.path)
                .timeout(timeout)
                .patience(Duration.ofSeconds(30)) // on a busy machine a start may take long
                .build();
    }

    private static Sidecar client(Daemon d) {
        return client(d, Duration.ofSeconds(5));
    }

    private static final LockOptions SECOND = LockOptions.defaults().ttl(Duration.ofSeconds(1));

    @Test
    void a_restart() {
        try (Daemon daemon = Daemon.started(); Sidecar client = client(daemon)) {
            List<LostException> losses = new CopyOnWriteArrayList<>();
            SidecarLock lock = client.lock("k", SECOND.onLost(losses::add));
            lock.lock();
            long fence = lock.fence();
            daemon.kill();
            until("it is noticed", () -> !lock.isHeldByOwner());
            assertEquals(Duration.ZERO, lock.remaining());
            assertEquals(fence, lock.fence());
            until("the listener is told", () -> !losses.isEmpty());
            assertEquals("connection", losses.get(0).reason());
            assertThrows(LostException.class, lock::unlock);
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            daemon.start();
            lock.lock();
            assertTrue(lock.fence() > fence);
            lock.unlock();
            assertEquals(1, losses.size());
        }
    }

    @Test
    void a_wait_over_a_restart() {
        try (Daemon daemon = Daemon.started(); Sidecar client = client(daemon); Sidecar other = client(daemon)) {
            client.lock("k", SECOND).lock();
            Background<Boolean> waiting = background(() -> other.lock("k").tryLock(60, TimeUnit.SECONDS));
            var future = other.leaseAsync("k");
            OnDaemon.untilWaiting(client, "k", 2);
            daemon.kill();
            daemon.start();
            future.thenAccept(Lease::close);
            Background<Void> granted = background(() -> {
                future.join();
                return null;
            });
            until("one of them has it", () -> waiting.isDone() || granted.isDone());
            if (waiting.isDone()) {
                assertTrue(waiting.result());
            } else {
                assertTrue(waiting.result());
                granted.result();
            }
        }
    }

    @Test
    void a_wait_over_an_orderly_restart() {
        try (Daemon daemon = Daemon.started("--drain", "30s");
                Sidecar client = client(daemon);
                Sidecar other = client(daemon)) {
            SidecarLock holder = client.lock("k");
            holder.lock();
            Background<Boolean> waiting = background(() -> other.lock("k").tryLock(60, TimeUnit.SECONDS));
            OnDaemon.untilWaiting(client, "k", 1);
            daemon.terminate();
            until("it drains", () -> FailureTest.drains(client));
            assertTrue(holder.isHeldByOwner());
            holder.unlock();
            assertEquals(0, daemon.exit());
            daemon.start();
            assertTrue(waiting.result());
            client.lock("other").lock();
        }
    }

    @Test
    void permits_over_a_restart() throws InterruptedException {
        List<LostException> losses = new CopyOnWriteArrayList<>();
        LockOptions options = SECOND.owner(Owner.create()).onLost(losses::add);
        try (Daemon daemon = Daemon.started(); Sidecar client = client(daemon)) {
            SidecarSemaphore semaphore = client.semaphore("k", 2, options);
            List<Lease> held = List.of(semaphore.acquire(), semaphore.acquire());
            var waiting = semaphore.acquireAsync();
            OnDaemon.untilWaiting(client, "k", Codes.PERMIT, 1);
            daemon.kill();
            until("each is told", () -> losses.size() == 2);
            held.forEach(one -> assertFalse(one.isValid()));
            losses.forEach(e -> assertEquals("connection", e.reason()));
            daemon.start();
            try (Lease next = waiting.join()) {
                assertTrue(held.stream().noneMatch(one -> one.fence() == next.fence()));
                held.forEach(one -> assertThrows(LostException.class, one::close));
                assertTrue(next.isValid());
            }
            assertEquals(2, losses.size());
        }
    }

    @Test
    void a_frozen_daemon() throws InterruptedException {
        try (Daemon daemon = Daemon.started(); Sidecar client = client(daemon, Duration.ofSeconds(1))) {
            List<LostException> losses = new CopyOnWriteArrayList<>();
            SidecarLock lock = client.lock("k", SECOND.onLost(losses::add));
            lock.lock();
            Lease lease = client.lease("l", SECOND);
            daemon.freeze();
            long latest = BootClock.SYSTEM.now() + SESSION; // nothing can be stated any more
            until("the stated validity is over",
                    () -> BootClock.SYSTEM.now() >= latest || !lock.isHeldByOwner() && !lease.isValid());
            assertFalse(lock.isHeldByOwner());
            assertFalse(lease.isValid());
            assertEquals(Duration.ZERO, lock.remaining());
            until("the listener is told", () -> !losses.isEmpty());
            assertEquals("silence", losses.get(0).reason());
            assertThrows(LostException.class, lock::unlock);
            assertThrows(LostException.class, lease::close);
            assertThrows(UnavailableException.class, () -> lock.tryLock(100, TimeUnit.MILLISECONDS));
            daemon.thaw();
            try (Sidecar other = client(daemon)) {
                other.lock("k").lock();
            }
            assertEquals(1, losses.size());
        }
    }
}
