package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** A semaphore: so many permits, and each a lease. */
class SemaphoreTest extends OnDaemon {
    private static final LockOptions FIXED = LockOptions.defaults().ttl(Duration.ofMillis(300)).fixed();

    private SidecarSemaphore semaphore(Sidecar client, int permits) {
        return client.semaphore(key, permits);
    }

    /** Returns how many permits are free. */
    private int free(int permits) {
        SidecarSemaphore all = semaphore(connect(), permits);
        List<Lease> had = new ArrayList<>();
        for (var one = all.tryAcquire(); one.isPresent(); one = all.tryAcquire()) {
            had.add(one.get());
        }
        had.forEach(Lease::close);
        return had.size();
    }

    private void untilWaiting(Sidecar client, long count) {
        untilWaiting(client, key, Codes.PERMIT, count);
    }

    @Test
    void what_it_says_of_itself() throws InterruptedException {
        SidecarSemaphore semaphore = semaphore(connect(), 2);
        assertEquals(key, semaphore.key());
        assertEquals(2, semaphore.permits());
        assertTrue(semaphore.toString().contains(key));
        assertFalse(semaphore.isHeldByAnybody());
        Lease one = semaphore.acquire();
        Lease two = semaphore.acquireUninterruptibly();
        assertTrue(semaphore.isHeldByAnybody());
        assertEquals(key, one.key());
        assertTrue(one.isValid() && one.fence() > 0 && two.fence() > 0 && one.fence() != two.fence());
        assertTrue(one.remaining().compareTo(Duration.ZERO) > 0);
        assertTrue(one.remaining().compareTo(Duration.ofSeconds(30)) <= 0);
        one.extend();
        Until.refused(Code.INVALID, one::downgrade);
        assertTrue(one.isValid());
        one.close();
        assertFalse(one.isValid());
        assertThrows(NotHeldException.class, one::extend);
        assertTrue(two.isValid() && semaphore.isHeldByAnybody());
        two.close();
        assertFalse(semaphore.isHeldByAnybody());
    }

    @Test
    void as_many_as_there_are() throws InterruptedException {
        List<Lease> all = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            all.add(semaphore(connect(), 3).acquire(Duration.ofSeconds(30)));
        }
        SidecarSemaphore semaphore = semaphore(connect(), 3);
        assertTrue(semaphore.tryAcquire().isEmpty());
        assertTrue(semaphore.tryAcquire(Duration.ofMillis(20)).isEmpty());
        NotAcquiredException e =
                assertThrows(NotAcquiredException.class, () -> semaphore.acquire(Duration.ofMillis(20)));
        assertTrue(e.getMessage().contains("semaphore \"" + key + "\""), e.getMessage());
        assertInstanceOf(
                NotAcquiredException.class,
                assertThrows(CompletionException.class, semaphore.acquireAsync(Duration.ZERO)::join).getCause());
        all.get(1).close();
        all.get(1).close(); // twice, and yet one comes back
        assertTrue(all.get(1).releaseAsync().isDone());
        assertEquals(1, free(3));
        assertTrue(all.get(0).isValid() && all.get(2).isValid());
        running(all.get(0)::close).result(); // by whom does not matter
        assertEquals(2, free(3));
        all.get(2).releaseAsync().join();
        assertEquals(3, free(3));
        assertEquals(1, free(1));
        assertEquals(4, free(4));
    }

    @Test
    void nothing_is_re_entered() throws InterruptedException {
        LockOptions named = LockOptions.defaults().owner(Owner.create());
        for (LockOptions mine : List.of(named, LockOptions.defaults().ownedByThread(), LockOptions.defaults())) {
            SidecarSemaphore semaphore = connect().semaphore(key, 3, mine);
            Set<Long> fences = new HashSet<>();
            List<Lease> all = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                all.add(semaphore.acquire());
                fences.add(all.get(i).fence());
            }
            assertEquals(3, fences.size());
            assertTrue(semaphore.tryAcquire().isEmpty());
            assertEquals(0, free(3));
            all.get(1).close();
            assertEquals(List.of(true, false, true), all.stream().map(Lease::isValid).toList());
            assertEquals(1, free(3));
            all.get(0).close();
            all.get(2).close();
            assertEquals(3, free(3));
        }
    }

    @Test
    void a_lock_of_the_same_key_is_another_thing() throws InterruptedException {
        Sidecar client = connect();
        for (LockOptions mine : List.of(
                LockOptions.defaults().owner(Owner.create()), LockOptions.defaults().ownedByThread())) {
            SidecarSemaphore semaphore = client.semaphore(key, 1, mine);
            SidecarLock lock = client.lock(key, mine);
            Lease permit = semaphore.acquire();
            assertFalse(lock.isHeldByOwner() || lock.isLocked());
            assertTrue(lock.tryLock());
            assertTrue(lock.fence() != permit.fence());
            lock.lock();
            lock.unlock();
            permit.close();
            assertTrue(lock.isHeldByOwner());
            permit = semaphore.tryAcquire().orElseThrow();
            lock.unlock();
            assertTrue(permit.isValid() && !lock.isLocked() && semaphore.isHeldByAnybody());
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            permit.close();
        }
    }

    @Test
    void who_waits_is_served_in_order() throws InterruptedException {
        Sidecar holder = connect();
        List<Lease> held = List.of(semaphore(holder, 2).acquire(), semaphore(holder, 2).acquire());
        List<CompletableFuture<Lease>> waiting = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            waiting.add(semaphore(i % 2 == 0 ? holder : connect(), 2).acquireAsync());
            untilWaiting(holder, i + 1);
        }
        assertTrue(semaphore(holder, 2).tryAcquire().isEmpty());
        List<Lease> next = new ArrayList<>(held);
        for (int i = 0; i < 4; i++) {
            assertFalse(waiting.get(i).isDone());
            next.get(i).close();
            next.add(waiting.get(i).join());
            untilWaiting(holder, 3 - i);
        }
        next.forEach(Lease::close);
        assertEquals(2, free(2));
    }

    @Test
    void an_interrupt_withdraws_a_wait() throws InterruptedException {
        Sidecar client = connect();
        SidecarSemaphore semaphore = semaphore(client, 1);
        Lease held = semaphore.acquire();
        Conn conn = client.link.live();
        List<Background<?>> waiting = List.of(
                background(semaphore::acquire), background(() -> semaphore.acquire(Duration.ofHours(1))),
                background(() -> semaphore.tryAcquire(Duration.ofHours(1))));
        Background<Boolean> patient = background(() -> {
            semaphore.acquireUninterruptibly().close();
            return Thread.interrupted();
        });
        untilWaiting(client, 4);
        patient.thread.interrupt();
        for (Background<?> w : waiting) {
            w.thread.interrupt();
            assertInstanceOf(InterruptedException.class, w.thrown());
        }
        untilWaiting(client, 1);
        assertTrue(held.isValid() && client.link.live() == conn);
        held.close();
        assertTrue(patient.result());
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, semaphore::acquire);
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> semaphore.tryAcquire(Duration.ZERO));
        Thread.currentThread().interrupt();
        semaphore.tryAcquire().orElseThrow().close(); // a try does not wait
        assertTrue(Thread.interrupted());
        assertEquals(1, free(1));
    }

    @Test
    void cancelling_withdraws_a_wait() throws InterruptedException {
        Sidecar client = connect();
        Lease held = semaphore(client, 1).acquire();
        CompletableFuture<Lease> future = semaphore(client, 1).acquireAsync();
        untilWaiting(client, 1);
        assertTrue(future.cancel(false));
        untilWaiting(client, 0);
        held.close();
        assertEquals(1, free(1));
    }

    @Test
    void one_of_two_permits_is_lost_and_comes_back() {
        Sidecar client = connect();
        LockOptions mine = LockOptions.defaults().owner(Owner.create());
        List<LostException> heard = new CopyOnWriteArrayList<>();
        Lease stays = client.semaphore(key, 2, mine.onLost(heard::add)).acquireUninterruptibly();
        Lease ends = client.semaphore(key, 2, mine.ttl(Duration.ofMillis(300)).fixed().onLost(heard::add))
                .acquireUninterruptibly();
        ends.onLost().thenAccept(heard::add);
        until("it has ended", () -> !ends.isValid());
        until("both are told", () -> heard.size() == 2);
        heard.forEach(e -> assertEquals(ends.fence(), e.fence()));
        assertTrue(stays.isValid());
        try (Lease next = semaphore(connect(), 2).acquireUninterruptibly()) { // though nobody released it
            assertTrue(next.isValid() && stays.isValid());
            assertThrows(LostException.class, ends::extend);
            assertThrows(LostException.class, ends::close);
            ends.close();
            assertTrue(next.isValid(), "a late close frees nobody else's");
            assertEquals(0, free(2));
        }
        stays.close();
        assertEquals(2, heard.size());
    }

    @Test
    void a_body_that_lost_its_permit_is_told_at_its_end() {
        SidecarSemaphore semaphore = connect().semaphore(key, 1, FIXED);
        assertThrows(LostException.class, () -> {
            try (Lease permit = semaphore.acquire()) {
                until("it has ended", () -> !permit.isValid());
            }
        });
    }

    @Test
    void what_cannot_be_is_refused_at_once() {
        Sidecar client = connect();
        for (int permits : new int[] {0, -1, 10_001, Integer.MIN_VALUE, Integer.MAX_VALUE}) {
            LockException e = Until.refused(Code.INVALID, () -> client.semaphore(key, permits));
            assertTrue(e.getMessage().contains(String.valueOf(permits)), e.getMessage());
        }
        Until.refused(Code.INVALID, () -> client.semaphore("", 1));
        assertThrows(NullPointerException.class, () -> client.semaphore(null, 1));
        assertThrows(NullPointerException.class, () -> client.semaphore(key, 1, null));
        assertThrows(IllegalArgumentException.class, () -> client.semaphore(key, 1, LockOptions.defaults().shared()));
        SidecarSemaphore tooLong = client.semaphore(key, 1, LockOptions.defaults().ttl(Duration.ofDays(100)));
        Until.refused(Code.INVALID, tooLong::tryAcquire);
        assertThrows(NullPointerException.class, () -> tooLong.tryAcquire(null));
    }

    @Test
    void many_of_one_owner() {
        SidecarSemaphore semaphore =
                connect().semaphore(key, 10_000, LockOptions.defaults().owner(Owner.create()));
        List<Lease> all = IntStream.range(0, 300).mapToObj(i -> semaphore.acquireAsync()).toList().stream()
                .map(CompletableFuture::join)
                .toList();
        assertEquals(300, all.stream().map(Lease::fence).distinct().count());
        assertTrue(all.stream().allMatch(Lease::isValid));
        CompletableFuture.allOf(all.stream().map(Lease::releaseAsync).toArray(CompletableFuture[]::new)).join();
        assertFalse(semaphore.isHeldByAnybody());
    }
}
