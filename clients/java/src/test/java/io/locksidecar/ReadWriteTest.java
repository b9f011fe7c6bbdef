package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** SidecarReadWriteLock is a ReadWriteLock. */
class ReadWriteTest extends OnDaemon {
    @Test
    void readers_share_and_writers_do_not() {
        SidecarReadWriteLock here = connect().readWriteLock(key);
        SidecarReadWriteLock there = connect().readWriteLock(key);
        here.readLock().lock();
        assertTrue(there.readLock().tryLock());
        assertTrue(background(() -> here.readLock().tryLock()).result());
        assertFalse(background(() -> there.writeLock().tryLock()).result());
        here.readLock().unlock();
        there.readLock().unlock();
        assertEquals(key, here.key());
    }

    @Test
    void the_write_lock_is_the_lock_of_the_key() {
        Sidecar client = connect();
        LockOptions byThread = LockOptions.defaults().ownedByThread();
        client.lock(key, byThread).lock();
        SidecarReadWriteLock lock = client.readWriteLock(key, byThread);
        lock.writeLock().unlock();
        assertThrows(IllegalMonitorStateException.class, client.lock(key, byThread)::unlock);
        lock.writeLock().lock();
        assertFalse(client.lock(key).tryLock());
        lock.writeLock().unlock();
    }

    @Test
    void read_and_write_lock_have_separate_counts() {
        SidecarReadWriteLock lock = connect().readWriteLock(key);
        lock.writeLock().lock();
        lock.readLock().lock();
        lock.readLock().lock();
        assertEquals(List.of(1, 2), List.of(lock.writeLock().holdCount(), lock.readLock().holdCount()));
        lock.writeLock().unlock();
        assertEquals(List.of(0, 2), List.of(lock.writeLock().holdCount(), lock.readLock().holdCount()));
        lock.readLock().unlock();
        lock.readLock().unlock();
        assertEquals(0, lock.readLock().holdCount());
    }

    @Test
    void a_downgrade_lets_readers_in_and_nobody_between() {
        SidecarReadWriteLock here = connect().readWriteLock(key);
        SidecarReadWriteLock there = connect().readWriteLock(key);
        here.writeLock().lock();
        long fence = here.writeLock().fence();
        here.readLock().lock();
        assertFalse(there.readLock().tryLock());
        Background<Void> writer = running(there.writeLock()::lock);
        untilWaiting(connect(), key, 1);
        here.writeLock().unlock();
        assertThrows(IllegalMonitorStateException.class, here.writeLock()::unlock);
        assertEquals(fence, here.readLock().fence());
        assertTrue(here.readLock().isHeldByOwner());
        assertFalse(writer.isDone());
        here.readLock().unlock();
        writer.result();
    }

    @Test
    void a_downgrade_by_the_last_of_several_writes() {
        SidecarReadWriteLock here = connect().readWriteLock(key);
        SidecarReadWriteLock there = connect().readWriteLock(key);
        here.writeLock().lock();
        here.writeLock().lock();
        here.readLock().lock();
        here.writeLock().unlock();
        assertFalse(there.readLock().tryLock());
        here.writeLock().unlock();
        assertTrue(there.readLock().tryLock());
        here.readLock().unlock();
        there.readLock().unlock();
        assertTrue(there.writeLock().tryLock());
    }

    @Test
    void a_writer_that_has_read_stays_a_writer() {
        SidecarReadWriteLock here = connect().readWriteLock(key);
        SidecarReadWriteLock there = connect().readWriteLock(key);
        here.writeLock().lock();
        here.readLock().lock();
        here.readLock().unlock();
        assertFalse(there.readLock().tryLock());
        here.writeLock().unlock();
        assertTrue(there.readLock().tryLock());
    }

    @Test
    void an_upgrade_is_refused() throws InterruptedException {
        SidecarReadWriteLock lock = connect().readWriteLock(key);
        lock.readLock().lock();
        Until.refused(Code.UPGRADE, lock.writeLock()::lock);
        Until.refused(Code.UPGRADE, lock.writeLock()::tryLock);
        Until.refused(Code.UPGRADE, lock.writeLock()::lockInterruptibly);
        assertTrue(lock.readLock().isHeldByOwner());
        lock.readLock().unlock();
        lock.writeLock().lock();
        lock.writeLock().unlock();
    }

    @Test
    void the_daemon_refuses_an_upgrade_too() {
        Sidecar client = connect();
        LockOptions options = LockOptions.defaults().owner(Owner.create());
        SidecarReadWriteLock lock = client.readWriteLock(key, options);
        for (int n = 0; n < 100; n++) { // the two cross, or one sees the other
            Background<Boolean> writer = background(() -> {
                try {
                    lock.writeLock().lock();
                    return true;
                } catch (NotAcquiredException e) {
                    return e.code() != Code.UPGRADE;
                }
            });
            lock.readLock().lock();
            if (writer.result()) {
                lock.writeLock().unlock();
            }
            lock.readLock().unlock();
            assertFalse(lock.readLock().isLocked());
        }
    }

    @Test
    void readers_do_not_overtake_a_writer() {
        SidecarReadWriteLock here = connect().readWriteLock(key);
        SidecarReadWriteLock there = connect().readWriteLock(key);
        here.readLock().lock();
        Background<Void> writer = running(there.writeLock()::lock);
        untilWaiting(connect(), key, 1);
        assertFalse(background(() -> connect().readWriteLock(key).readLock().tryLock()).result());
        assertTrue(here.readLock().tryLock(), "but who reads may read again");
        here.readLock().unlock();
        here.readLock().unlock();
        writer.result();
    }

    @Test
    void many_readers_and_writers() {
        AtomicInteger readers = new AtomicInteger();
        AtomicInteger writers = new AtomicInteger();
        List<Background<Void>> all = new ArrayList<>();
        for (int t = 0; t < 8; t++) {
            SidecarReadWriteLock lock = connect().readWriteLock(key);
            boolean writes = t % 4 == 0;
            all.add(running(() -> {
                for (int n = 0; n < 100; n++) {
                    if (writes) {
                        lock.writeLock().lock();
                        assertEquals(1, writers.incrementAndGet());
                        assertEquals(0, readers.get());
                        lock.readLock().lock();
                        writers.decrementAndGet();
                        readers.incrementAndGet();
                        lock.writeLock().unlock();
                    } else {
                        lock.readLock().lock();
                        readers.incrementAndGet();
                    }
                    assertEquals(0, writers.get());
                    readers.decrementAndGet();
                    lock.readLock().unlock();
                }
            }));
        }
        all.forEach(Background::result);
    }
}
