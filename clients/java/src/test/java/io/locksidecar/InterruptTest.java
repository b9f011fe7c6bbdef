package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.Until.Background;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;

/** Interrupts end waits, and nothing else, because all threads share the channel. */
class InterruptTest extends OnDaemon {
    @Test
    void an_interrupt_withdraws_the_wait() {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key);
        lock.lock();
        Conn conn = client.link.live();
        List<Background<?>> waiting = List.of(
                running(lock::lockInterruptibly),
                background(() -> lock.tryLock(1, TimeUnit.HOURS)),
                background(() -> client.lease(key)));
        untilWaiting(client, key, 3);
        for (Background<?> w : waiting) {
            w.thread.interrupt();
            assertInstanceOf(InterruptedException.class, w.thrown());
        }
        untilWaiting(client, key, 0);
        assertTrue(lock.isHeldByOwner());
        assertSame(conn, client.link.live());
        assertNull(conn.dead);
        lock.unlock();
    }

    @Test
    void an_interrupted_thread_does_not_begin_to_wait() {
        SidecarLock lock = connect().lock(key);
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, lock::lockInterruptibly);
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
        assertFalse(Thread.interrupted());
        Thread.currentThread().interrupt();
        assertTrue(lock.tryLock(), "a try does not wait");
        lock.lock();
        lock.unlock();
        lock.unlock();
        assertTrue(lock.isLocked() || Thread.interrupted(), "kept for later");
        assertFalse(lock.isLocked());
    }

    @Test
    void a_storm_of_interrupts_leaves_the_channel_alone() {
        Sidecar client = connect().connect();
        Conn conn = client.link.live();
        AtomicBoolean over = new AtomicBoolean();
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger interrupted = new AtomicInteger();
        AtomicInteger granted = new AtomicInteger();
        List<Background<Void>> workers = new ArrayList<>();
        for (int t = 0; t < 8; t++) {
            int me = t;
            workers.add(running(() -> {
                SidecarLock lock = client.lock(key);
                for (int n = 0; !over.get(); n++) {
                    try {
                        if (me % 2 == 0) {
                            lock.lockInterruptibly();
                        } else if (!lock.tryLock(50, TimeUnit.MILLISECONDS)) {
                            continue;
                        }
                    } catch (InterruptedException e) {
                        interrupted.incrementAndGet();
                        continue;
                    }
                    try { // interrupts come here too, and in the unlock
                        assertEquals(1, inside.incrementAndGet());
                        granted.incrementAndGet();
                        if (n % 5 == 0) {
                            lock.lock();
                            lock.unlock();
                        }
                        assertEquals(0, inside.decrementAndGet());
                    } finally {
                        lock.unlock();
                    }
                }
            }));
        }
        for (int n = 0; interrupted.get() < 4000; n++) {
            Background<Void> w = workers.get(n % workers.size());
            if (w.isDone()) {
                break; // it failed, and says so below
            }
            w.thread.interrupt();
            LockSupport.parkNanos(20_000 + n % 50 * 4_000);
        }
        over.set(true);
        workers.stream().filter(Background::isDone).forEach(Background::result); // what failed, first
        workers.forEach(Background::result);
        assertTrue(granted.get() > 0);
        assertSame(conn, client.link.live(), "the one connection lived through it");
        assertNull(conn.dead);
        untilWaiting(client, key, 0);
        assertTrue(connect().lock(key).tryLock(), "nothing is left held");
        Until.until("nothing is in flight", () -> Until.inFlight(conn) == 0);
    }

    @Test
    void a_storm_of_owners_and_modes() {
        Sidecar client = connect();
        Owner owner = Owner.create();
        SidecarReadWriteLock lock = client.readWriteLock(key, LockOptions.defaults().owner(owner));
        SidecarReadWriteLock other = connect().readWriteLock(key);
        AtomicBoolean over = new AtomicBoolean();
        AtomicInteger interrupted = new AtomicInteger();
        AtomicInteger writing = new AtomicInteger();
        Background<Void> worker = running(() -> {
            for (int n = 0; !over.get(); n++) {
                SidecarLock one = n % 3 == 0 ? lock.readLock() : lock.writeLock();
                try {
                    one.lockInterruptibly(); // never refused as an upgrade: the owner holds nothing
                    assertEquals(0, writing.get());
                    one.unlock();
                } catch (InterruptedException e) {
                    interrupted.incrementAndGet();
                }
            }
        });
        Background<Void> rival = running(() -> {
            while (!over.get()) {
                other.writeLock().lock();
                writing.incrementAndGet();
                writing.decrementAndGet();
                other.writeLock().unlock();
            }
        });
        for (int n = 0; interrupted.get() < 3000 && !worker.isDone(); n++) {
            worker.thread.interrupt();
            LockSupport.parkNanos(30_000 + n % 40 * 5_000);
        }
        over.set(true);
        worker.result();
        rival.result();
        other.writeLock().lock();
        other.writeLock().unlock();
    }
}
