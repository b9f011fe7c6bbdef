package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.Until.Background;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.Test;

/** Between a loss and its release, an owner cannot acquire the key. */
class LossTest extends OnDaemon {
    private static final LockOptions SHORT = LockOptions.defaults().ttl(Duration.ofMillis(200)).fixed();

    /** Takes a lock away by force, as an operator does. */
    private void force(String key) {
        try {
            Process p = new ProcessBuilder(
                            Daemon.binary(), "unlock", "--force", "--socket", daemon.path.toString(), key)
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                    .start();
            assertEquals(0, p.waitFor());
        } catch (IOException | InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    private static void lost(Until.Task acquire, long fence, String reason) {
        LostException e = assertThrows(LostException.class, acquire::run);
        assertEquals(fence, e.fence());
        assertEquals(reason, e.reason());
    }

    @Test
    void a_lost_lock_is_not_acquired_again_before_its_unlock() {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key, SHORT);
        lock.lock();
        lock.lock();
        long fence = lock.fence();
        Lease theirs = connect().leaseAsync(key).join();
        for (Until.Task again : List.<Until.Task>of(
                lock::lock, lock::lockInterruptibly, lock::tryLock, () -> lock.tryLock(1, TimeUnit.MINUTES))) {
            lost(again, fence, "fixed_end");
        }
        assertFalse(lock.isHeldByOwner());
        assertEquals(2, lock.holdCount());
        lost(lock::unlock, fence, "fixed_end"); // the inner scope
        lost(lock::tryLock, fence, "fixed_end");
        assertTrue(background(() -> !lock.tryLock()).result(), "another thread is another owner");
        theirs.close();
        lost(lock::unlock, fence, "fixed_end");
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        lock.lock();
        assertTrue(lock.fence() > theirs.fence());
        lock.unlock();
    }

    @Test
    void every_other_acquire_of_the_owner_is_refused_too() throws InterruptedException {
        Sidecar client = connect();
        LockOptions mine = LockOptions.defaults().owner(Owner.create());
        SidecarLock lock = client.lock(key, mine);
        lock.lock();
        long fence = lock.fence();
        force(key);
        until("it is lost", () -> !lock.isHeldByOwner());
        for (Until.Task again : List.<Until.Task>of(
                () -> client.lease(key, mine), () -> client.tryLease(key, mine),
                () -> client.tryLease(key, Duration.ofMinutes(1), mine),
                () -> client.leaseAll(List.of(key + "other", key), mine),
                () -> client.tryLeaseAll(List.of(key), Duration.ZERO, mine),
                client.readWriteLock(key, mine).readLock()::lock)) {
            lost(again, fence, "forced");
        }
        CompletionException e = assertThrows(
                CompletionException.class, client.leaseAsync(key, Duration.ofMinutes(1), mine)::join);
        assertInstanceOf(LostException.class, e.getCause());
        e = assertThrows(
                CompletionException.class, client.leaseAllAsync(List.of(key), Duration.ofMinutes(1), mine)::join);
        assertInstanceOf(LostException.class, e.getCause());
        client.semaphore(key, 1, mine).acquire().close(); // a semaphore is independent of the lock
        lost(lock::unlock, fence, "forced");
        client.lease(key, mine).close();
        client.leaseAll(List.of(key, key + "other"), mine).close();
    }

    @Test
    void leases_of_one_owner_are_all_to_be_closed() throws InterruptedException {
        Sidecar client = connect();
        LockOptions mine = SHORT.owner(Owner.create());
        List<Lease> held = List.of(client.lease(key, mine), client.lease(key, mine));
        long fence = held.get(0).fence();
        until("they are lost", () -> !held.get(0).isValid());
        lost(() -> client.tryLease(key, mine), fence, "fixed_end");
        lost(held.get(0)::close, fence, "fixed_end");
        lost(() -> client.tryLease(key, mine), fence, "fixed_end");
        lost(held.get(1)::close, fence, "fixed_end");
        client.tryLease(key, mine).orElseThrow().close();
    }

    @Test
    void it_is_not_acquired_from_the_next_daemon_or_without_one() {
        try (Daemon other = Daemon.started(); Sidecar client = Sidecar.create(other.path)) {
            SidecarLock lock = client.lock(key);
            lock.lock();
            long fence = lock.fence();
            other.kill();
            until("it is lost", () -> !lock.isHeldByOwner());
            lost(lock::tryLock, fence, "connection");
            other.start();
            lost(lock::lock, fence, "connection");
            lost(lock::unlock, fence, "connection");
            lock.lock();
            assertTrue(lock.fence() > fence);
        }
    }

    @Test
    void a_scope_inside_a_lost_one_does_not_begin() throws InterruptedException {
        Sidecar client = connect();
        LockOptions mine = SHORT.owner(Owner.create());
        List<String> done = new ArrayList<>();
        LostException e = assertThrows(LostException.class, () -> {
            try (Lease outer = client.lease(key, mine)) {
                until("it is lost", () -> !outer.isValid());
                try (Lease inner = client.lease(key, mine)) {
                    done.add("inner " + inner.fence());
                }
            }
        });
        assertEquals(List.of(), done);
        assertEquals(1, e.getSuppressed().length, "the end of the outer scope says so too");
        assertEquals("fixed_end", ((LostException) e.getSuppressed()[0]).reason());
    }

    /** The loop of Spring Integration's LockRegistryLeaderInitiator, without its pauses. */
    private static final class Initiator {
        private final Lock lock;
        final List<String> said = new ArrayList<>();
        boolean leads;

        Initiator(Lock lock) {
            this.lock = lock;
        }

        void heartbeat() throws InterruptedException {
            try {
                boolean acquired = lock.tryLock(20, TimeUnit.MILLISECONDS); // always, in case it expired
                if (!leads) {
                    if (acquired) {
                        leads = true;
                        said.add("granted");
                    }
                } else if (acquired) {
                    lock.unlock(); // it was locked already
                } else {
                    revoked();
                }
            } catch (RuntimeException e) {
                if (leads) {
                    try {
                        lock.unlock();
                    } catch (RuntimeException broken) {
                        said.add(broken.getClass().getSimpleName());
                    }
                    revoked();
                }
            }
        }

        private void revoked() {
            leads = false;
            said.add("revoked");
        }
    }

    @Test
    void springs_leader_does_not_lead_without_its_lock() throws InterruptedException {
        SidecarLock lock = connect().lock(key, SHORT);
        Initiator initiator = new Initiator(lock);
        while (!lock.isHeldByOwner()) {
            initiator.heartbeat();
        }
        assertEquals(List.of("granted"), initiator.said);
        until("it is lost", () -> !lock.isHeldByOwner());
        initiator.heartbeat();
        assertFalse(initiator.leads);
        assertEquals(List.of("granted", "LostException", "revoked"), initiator.said);
        SidecarLock other = connect().lock(key);
        assertTrue(other.tryLock());
        initiator.heartbeat();
        assertFalse(initiator.leads);
        other.unlock();
        initiator.heartbeat();
        assertTrue(initiator.leads, "and again when it can be had");
    }

    @Test
    void a_forced_unlock_frees_the_key_with_the_release() throws InterruptedException {
        Sidecar client = connect();
        Sidecar other = connect();
        LockOptions hour = LockOptions.defaults().ttl(Duration.ofHours(1));
        SidecarLock lock = client.lock(key, hour);
        lock.lock();
        free(other, lock::unlock, key);
        Lease lease = client.lease(key, hour);
        free(other, lease::close, key);
        Lease async = client.lease(key, hour);
        free(other, () -> async.releaseAsync().join(), key);
        Leases several = client.leaseAll(List.of(key, key + "2"), hour);
        free(other, several::close, key, key + "2");
    }

    /** Checks that keys that were unlocked by force are free only after the release, which reports the loss. */
    private void free(Sidecar other, Until.Task release, String... keys) throws InterruptedException {
        List<Background<Lease>> next = new ArrayList<>();
        for (String k : keys) {
            force(k);
            next.add(background(() -> other.lease(k)));
            untilWaiting(other, k, 1);
        }
        Throwable e = assertThrows(RuntimeException.class, release::run);
        e = e instanceof CompletionException ? e.getCause() : e;
        assertEquals("forced", assertInstanceOf(LostException.class, e).reason());
        for (Background<Lease> n : next) {
            n.result().close();
        }
    }

    @Test
    void the_end_of_a_fixed_lock_is_called_fixed_end() throws InterruptedException {
        Sidecar client = connect();
        Sidecar other = connect();
        List<String> reasons = new CopyOnWriteArrayList<>();
        LockOptions options = LockOptions.defaults().ttl(Duration.ofMillis(100)).fixed()
                .onLost(lost -> reasons.add(lost.reason()));
        List<Lease> all = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            all.add(client.lease(key + i, options));
            if (i % 2 == 0) {
                other.leaseAsync(key + i).thenAccept(Lease::releaseAsync); // the daemon or the client notices the end first
            }
        }
        for (Lease lease : all) {
            until("it has ended", () -> !lease.isValid());
            assertEquals("fixed_end", assertThrows(LostException.class, lease::close).reason());
        }
        until("all are told", () -> reasons.size() == 40);
        reasons.forEach(reason -> assertEquals("fixed_end", reason));
    }
}
