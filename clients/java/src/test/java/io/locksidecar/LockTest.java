package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** SidecarLock is a Lock. */
class LockTest extends OnDaemon {
    @Test
    void what_it_says_of_itself() {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key);
        assertFalse(lock.isHeldByOwner());
        assertFalse(lock.isLocked());
        assertEquals(Duration.ZERO, lock.remaining());
        assertThrows(NotHeldException.class, lock::fence);
        lock.lock();
        assertTrue(lock.isHeldByOwner());
        assertTrue(lock.isLocked());
        assertTrue(lock.fence() > 0);
        assertTrue(lock.remaining().compareTo(Duration.ZERO) > 0);
        assertTrue(lock.remaining().compareTo(Duration.ofSeconds(30)) <= 0);
        assertTrue(lock.toString().contains("held by this owner"));
        assertFalse(background(lock::isHeldByOwner).result());
        lock.unlock();
        assertFalse(lock.isHeldByOwner());
        assertFalse(lock.isLocked());
        assertEquals(key, lock.key());
        assertTrue(client.ping().compareTo(Duration.ZERO) > 0);
    }

    @Test
    void a_thread_may_acquire_again_through_its_handle() {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key);
        assertEquals(0, lock.holdCount());
        lock.lock();
        long fence = lock.fence();
        assertTrue(lock.tryLock());
        lock.lock();
        assertEquals(fence, lock.fence());
        assertEquals(3, lock.holdCount());
        assertEquals(0, background(lock::holdCount).result());
        lock.unlock();
        lock.unlock();
        assertFalse(background(lock::tryLock).result());
        lock.unlock();
        assertEquals(0, lock.holdCount());
        assertTrue(background(lock::tryLock).result());
    }

    @Test
    void another_thread_waits() {
        SidecarLock lock = connect().lock(key);
        lock.lock();
        long first = lock.fence();
        Background<Long> other = background(() -> {
            lock.lock();
            try {
                return lock.fence();
            } finally {
                lock.unlock();
            }
        });
        untilWaiting(connect(), key, 1);
        lock.unlock();
        assertTrue(other.result() > first);
    }

    @Test
    void only_the_owner_unlocks() {
        SidecarLock lock = connect().lock(key);
        IllegalMonitorStateException e = assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertInstanceOf(NotHeldException.class, e.getCause());
        lock.lock();
        assertInstanceOf(IllegalMonitorStateException.class, running(lock::unlock).thrown());
        assertInstanceOf(
                IllegalMonitorStateException.class,
                running(connect().lock(key)::unlock).thrown());
        assertTrue(lock.isHeldByOwner());
        lock.unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void conditions_are_not_supported() {
        assertThrows(UnsupportedOperationException.class, connect().lock(key)::newCondition);
    }

    @Test
    void a_try_does_not_wait() throws InterruptedException {
        connect().lock(key).lock();
        SidecarLock lock = connect().lock(key);
        assertFalse(lock.tryLock());
        assertFalse(lock.tryLock(0, TimeUnit.SECONDS));
        assertFalse(lock.tryLock(-1, TimeUnit.SECONDS));
        assertFalse(lock.tryLock(Long.MIN_VALUE, TimeUnit.DAYS));
    }

    @Test
    void a_wait_has_its_bound() throws InterruptedException {
        SidecarLock held = connect().lock(key);
        held.lock();
        SidecarLock lock = connect().lock(key);
        long start = System.nanoTime();
        assertFalse(lock.tryLock(150, TimeUnit.MILLISECONDS));
        assertTrue(System.nanoTime() - start >= 150_000_000);
        assertFalse(lock.tryLock(1, TimeUnit.NANOSECONDS));
        Background<Boolean> other = background(() -> lock.tryLock(Long.MAX_VALUE, TimeUnit.DAYS));
        untilWaiting(connect(), key, 1);
        held.unlock();
        assertTrue(other.result());
    }

    @Test
    void an_owner_may_be_named() {
        Sidecar client = connect();
        Owner one = Owner.named("one");
        Owner two = Owner.create();
        SidecarLock first = client.lock(key, LockOptions.defaults().owner(one));
        SidecarLock second = client.lock(key, LockOptions.defaults().owner(two));
        first.lock();
        assertFalse(second.tryLock(), "owners exclude each other on one thread");
        assertFalse(client.lock(key).tryLock());
        assertTrue(background(first::tryLock).result(), "the same owner on another thread");
        running(first::unlock).result();
        assertFalse(second.tryLock());
        running(first::unlock).result();
        assertTrue(second.tryLock());
        IllegalMonitorStateException e = assertThrows(IllegalMonitorStateException.class, first::unlock);
        assertTrue(e.getMessage().contains("one#"), e.getMessage());
        second.unlock();
    }

    @Test
    void one_owner_on_many_threads_at_once_is_one_hold() {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key, LockOptions.defaults().owner(Owner.create()));
        SidecarLock other = connect().lock(key);
        for (int round = 0; round < 50; round++) {
            List<Background<Void>> all = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                all.add(running(lock::lock));
            }
            all.forEach(Background::result);
            for (int i = 0; i < 4; i++) {
                assertFalse(other.tryLock());
                lock.unlock();
            }
            assertTrue(other.tryLock());
            other.unlock();
        }
    }

    @Test
    void an_owner_that_comes_and_goes_on_many_threads() {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key, LockOptions.defaults().owner(Owner.create()));
        SidecarLock other = connect().lock(key);
        AtomicInteger inside = new AtomicInteger();
        List<Background<Void>> all = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            all.add(running(() -> {
                for (int n = 0; n < 500; n++) {
                    lock.lock();
                    inside.incrementAndGet();
                    assertTrue(lock.isHeldByOwner());
                    inside.decrementAndGet();
                    lock.unlock();
                }
            }));
        }
        all.add(running(() -> {
            for (int n = 0; n < 200; n++) {
                other.lock();
                assertEquals(0, inside.get());
                other.unlock();
            }
        }));
        all.forEach(Background::result);
        assertTrue(other.tryLock());
    }

    @Test
    void one_holder_at_a_time_and_rising_fences() {
        List<Background<Void>> all = new ArrayList<>();
        List<Long> fences = new ArrayList<>(); // guarded by the lock itself
        AtomicInteger inside = new AtomicInteger();
        for (int c = 0; c < 2; c++) {
            Sidecar client = connect();
            for (int t = 0; t < 8; t++) {
                all.add(running(() -> {
                    SidecarLock lock = client.lock(key);
                    for (int n = 0; n < 50; n++) {
                        lock.lock();
                        try {
                            assertEquals(1, inside.incrementAndGet());
                            fences.add(lock.fence());
                            assertTrue(lock.isHeldByOwner());
                            assertEquals(0, inside.decrementAndGet());
                        } finally {
                            lock.unlock();
                        }
                    }
                }));
            }
        }
        all.forEach(Background::result);
        assertEquals(2 * 8 * 50, fences.size());
        for (int i = 1; i < fences.size(); i++) {
            assertTrue(fences.get(i) > fences.get(i - 1), "a later holder has a larger fence");
        }
    }

    @Test
    void a_thread_that_ended_leaves_its_lock_held() {
        Sidecar client = connect();
        running(client.lock(key)::lock).result();
        assertFalse(background(client.lock(key)::tryLock).result(), "no other thread inherits it");
        client.close();
        assertTrue(connect().lock(key).tryLock());
    }

    @Test
    void a_fixed_lock_ends_by_itself() {
        Sidecar client = connect();
        List<LostException> losses = new CopyOnWriteArrayList<>();
        LockOptions options = LockOptions.defaults().ttl(Duration.ofMillis(300)).fixed().onLost(losses::add);
        SidecarLock lock = client.lock(key, options);
        lock.lock();
        long fence = lock.fence();
        assertTrue(lock.remaining().compareTo(Duration.ofMillis(300)) <= 0);
        connect().lock(key).lock();
        assertFalse(lock.isHeldByOwner());
        assertEquals(Duration.ZERO, lock.remaining());
        until("the listener is told", () -> !losses.isEmpty());
        assertEquals("fixed_end", losses.get(0).reason());
        assertEquals(key, losses.get(0).key());
        assertEquals(fence, losses.get(0).fence());
        assertEquals(fence, lock.fence(), "it stays readable");
        assertThrows(LostException.class, () -> lock.extend(Duration.ofSeconds(1)));
        assertThrows(LostException.class, lock::unlock);
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertEquals(1, losses.size());
    }

    @Test
    void a_fixed_lock_can_be_extended() {
        SidecarLock lock = connect().lock(key, LockOptions.defaults().ttl(Duration.ofSeconds(5)).fixed());
        lock.lock();
        assertTrue(lock.remaining().compareTo(Duration.ofSeconds(5)) <= 0);
        lock.extend(Duration.ofSeconds(9));
        assertTrue(lock.remaining().compareTo(Duration.ofSeconds(5)) > 0);
        lock.unlock();
    }

    @Test
    void the_end_of_a_fixed_lock_is_known() throws InterruptedException {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key, LockOptions.defaults().ttl(Duration.ofHours(1)).fixed());
        assertTrue(lock.fixedEnd().isEmpty());
        lock.lock();
        Duration end = lock.fixedEnd().orElseThrow();
        assertTrue(end.compareTo(Duration.ofMinutes(50)) > 0 && end.compareTo(Duration.ofHours(1)) <= 0, end.toString());
        assertTrue(lock.remaining().compareTo(end) < 0, "what was stated is less than that");
        lock.extend(Duration.ofMinutes(1));
        assertTrue(lock.fixedEnd().orElseThrow().compareTo(Duration.ofMinutes(49)) > 0, "it is never shortened");
        lock.unlock();
        assertTrue(lock.fixedEnd().isEmpty());
        try (Lease renewed = client.lease(key)) {
            assertTrue(renewed.fixedEnd().isEmpty());
        }
        Lease lease = client.lease(key, LockOptions.defaults().ttl(Duration.ofHours(1)).fixed());
        assertTrue(lease.fixedEnd().orElseThrow().compareTo(Duration.ofMinutes(50)) > 0);
        lease.close();
        assertEquals(Duration.ZERO, lease.fixedEnd().orElseThrow());
    }

    @Test
    void a_listener_may_use_the_client() {
        Sidecar client = connect();
        List<Long> fences = new CopyOnWriteArrayList<>();
        LockOptions options = LockOptions.defaults().ttl(Duration.ofMillis(200)).fixed().onLost(lost -> {
            SidecarLock again = client.lock(lost.key());
            again.lock();
            fences.add(lost.fence());
            fences.add(again.fence());
            again.unlock();
        });
        client.lock(key, options).lock();
        until("the listener has run", () -> fences.size() == 2);
        assertTrue(fences.get(0) < fences.get(1));
    }

    @Test
    void clients_exclude_each_other() {
        SidecarLock here = connect().lock(key);
        SidecarLock there = connect().lock(key);
        here.lock();
        long fence = here.fence();
        assertFalse(there.tryLock());
        here.unlock();
        assertTrue(there.tryLock());
        assertNotEquals(fence, there.fence());
        assertTrue(there.fence() > fence);
    }

    @Test
    void virtual_threads_are_owners_too() throws ReflectiveOperationException, InterruptedException {
        if (Runtime.version().feature() < 21) {
            return;
        }
        Sidecar client = connect();
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger count = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        var start = Thread.class.getMethod("startVirtualThread", Runnable.class);
        for (int t = 0; t < 200; t++) {
            Runnable work = () -> {
                SidecarLock lock = client.lock(key);
                for (int n = 0; n < 5; n++) {
                    lock.lock();
                    lock.lock();
                    if (inside.incrementAndGet() == 1) {
                        count.incrementAndGet();
                    }
                    Thread.yield();
                    inside.decrementAndGet();
                    lock.unlock();
                    lock.unlock();
                }
            };
            threads.add((Thread) start.invoke(null, work));
        }
        for (Thread t : threads) {
            t.join();
        }
        assertEquals(1000, count.get());
    }
}
