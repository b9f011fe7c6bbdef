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
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** Many locks at once: all or none. */
class LeasesTest extends OnDaemon {
    private List<String> keys(String... suffixes) {
        return Stream.of(suffixes).map(s -> key + s).toList();
    }

    /** Checks that these are free. */
    private void free(List<String> keys) throws InterruptedException {
        Sidecar other = connect();
        for (String k : keys) {
            other.lease(k).close();
        }
    }

    private boolean taken(String k) throws InterruptedException {
        var lease = connect().tryLease(k);
        lease.ifPresent(Lease::close);
        return lease.isEmpty();
    }

    @Test
    void all_of_them() throws InterruptedException {
        List<String> keys = keys("z", "m", "a");
        Lease all = connect().leaseAll(keys);
        assertEquals(keys, all.keys());
        assertTrue(all.isValid());
        assertTrue(all.remaining().compareTo(Duration.ZERO) > 0);
        assertTrue(all.remaining().compareTo(Duration.ofSeconds(30)) <= 0);
        for (int i = 0; i < keys.size(); i++) {
            assertEquals(all.fences().get(i), all.fence(keys.get(i)));
            assertTrue(all.fence(keys.get(i)) > 0);
            assertTrue(taken(keys.get(i)));
            assertTrue(all.toString().contains(keys.get(i)));
        }
        Until.refused(Code.INVALID, () -> all.fence("none of them"));
        all.close();
        all.close();
        assertFalse(all.isValid());
        assertEquals(Duration.ZERO, all.remaining());
        assertTrue(all.releaseAsync().isDone());
        assertThrows(NotHeldException.class, all::extend);
        try (Lease next = connect().leaseAll(keys)) {
            for (String k : keys) {
                assertTrue(next.fence(k) > all.fence(k));
            }
            all.close();
            assertTrue(next.isValid());
        }
        free(keys);
    }

    @Test
    void or_none() throws InterruptedException {
        Sidecar client = connect();
        Lease theirs = connect().lease(key + "m");
        assertTrue(client.tryLeaseAll(keys("a", "m", "z")).isEmpty());
        NotAcquiredException e = assertThrows(
                NotAcquiredException.class, () -> client.leaseAll(keys("z", "m", "a"), Duration.ofMillis(20)));
        assertTrue(e.getMessage().contains("(\"" + key + "m\")"), e.getMessage());
        CompletionException late = assertThrows(CompletionException.class,
                client.leaseAllAsync(keys("z", "m"), Duration.ZERO, LockOptions.defaults())::join);
        assertInstanceOf(NotAcquiredException.class, late.getCause());
        free(keys("a", "z"));
        CompletableFuture<Lease> waiting = client.leaseAllAsync(keys("z", "m", "a"), Duration.ofDays(1), LockOptions.defaults());
        untilWaiting(client, key + "m", 1);
        until("what comes before is held meanwhile", () -> taken(key + "a"));
        assertFalse(taken(key + "z"), "what comes behind is not");
        theirs.close();
        waiting.thenCompose(Lease::releaseAsync).join();
        free(keys("a", "m", "z"));
    }

    @Test
    void an_interrupt_withdraws_all() throws InterruptedException {
        Sidecar client = connect();
        Lease theirs = connect().lease(key + "m");
        Background<?> waiting = background(() -> client.leaseAll(keys("a", "m", "z")));
        untilWaiting(client, key + "m", 1);
        waiting.thread.interrupt();
        assertInstanceOf(InterruptedException.class, waiting.thrown());
        untilWaiting(client, key + "m", 0);
        free(keys("a", "z"));
        theirs.close();
        free(keys("a", "m", "z"));
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> client.leaseAll(keys("a")));
        Thread.currentThread().interrupt();
        client.tryLeaseAll(keys("a")).orElseThrow().close();
        assertTrue(Thread.interrupted(), "a try does not wait, and keeps it for later");
    }

    @Test
    void whatever_is_given_up_at_whatever_moment_leaves_nothing_held() throws InterruptedException {
        Sidecar client = connect();
        Sidecar rival = connect();
        AtomicInteger granted = new AtomicInteger();
        for (int n = 0; n < 600; n++) {
            Lease theirs = n % 3 == 0 ? rival.lease(key + n % 2) : null;
            CompletableFuture<Lease> future = client.leaseAllAsync(keys("0", "1", "2"), Duration.ofDays(1), LockOptions.defaults());
            for (int spin = n % 97 * 60; spin > 0; spin--) {
                Thread.onSpinWait();
            }
            if (!future.cancel(true)) {
                granted.incrementAndGet();
                future.join().close();
            } else {
                assertThrows(CancellationException.class, future::join);
            }
            if (theirs != null) {
                theirs.close();
            }
        }
        free(keys("0", "1", "2"));
        until("nothing is in flight", () -> Until.inFlight(client.link.live()) == 0);
    }

    @Test
    void their_owner() throws InterruptedException {
        Sidecar client = connect();
        LockOptions byThread = LockOptions.defaults().ownedByThread();
        SidecarLock lock = client.lock(key + "a", byThread);
        lock.lock();
        assertTrue(client.tryLeaseAll(keys("b", "a")).isEmpty(), "they are their own");
        Lease mine = client.tryLeaseAll(keys("b", "a"), Duration.ZERO, byThread).orElseThrow();
        assertEquals(lock.fence(), mine.fence(key + "a"));
        assertTrue(client.lock(key + "b", byThread).isHeldByOwner());
        running(() -> assertTrue(client.tryLeaseAll(keys("b"), Duration.ZERO, byThread).isEmpty())).result();
        try (Lease lease = client.tryLease(key + "b", Duration.ZERO, byThread).orElseThrow()) {
            assertEquals(mine.fence(key + "b"), lease.fence());
            mine.close();
            assertTrue(lock.isHeldByOwner() && taken(key + "a"), "what it held before stays held");
            assertTrue(lease.isValid() && taken(key + "b"));
        }
        lock.unlock();
        free(keys("a", "b"));
        LockOptions named = LockOptions.defaults().owner(Owner.create());
        Lease one = client.leaseAll(keys("a", "b"), named);
        Lease two = client.leaseAll(keys("b", "a"), named); // all is held: nobody is asked
        Lease three = client.leaseAll(keys("b", "c", "a"), named);
        one.close();
        two.close();
        assertTrue(three.isValid() && taken(key + "a") && taken(key + "c"));
        three.close();
        free(keys("a", "b", "c"));
    }

    @Test
    void shared_ones() throws InterruptedException {
        Sidecar client = connect();
        LockOptions mine = LockOptions.defaults().owner(Owner.create());
        Lease readers = client.leaseAll(keys("a", "b"), mine.shared());
        try (Lease others = connect().leaseAll(keys("b", "a"), LockOptions.defaults().shared())) {
            assertTrue(others.isValid());
            Until.refused(Code.UPGRADE, () -> client.leaseAll(keys("c", "a"), mine));
            Until.refused(Code.UPGRADE, () -> client.leaseAll(keys("a", "b"), mine));
            free(keys("c"));
        }
        assertTrue(readers.isValid());
        readers.close();
        Lease writers = client.leaseAll(keys("a", "b"), mine);
        Lease both = client.leaseAll(keys("a", "b", "c"), mine.shared());
        assertEquals(writers.fence(key + "a"), both.fence(key + "a"));
        writers.close(); // a downgrade
        until("others read", () -> {
            var reader = connect().tryLeaseAll(keys("a", "b", "c"), Duration.ZERO, LockOptions.defaults().shared());
            reader.ifPresent(Lease::close);
            return reader.isPresent();
        });
        assertTrue(both.isValid() && taken(key + "a"));
        both.close();
        free(keys("a", "b", "c"));
    }

    @Test
    void to_lose_one_is_to_lose_all() throws InterruptedException {
        Sidecar client = connect();
        List<LostException> heard = new CopyOnWriteArrayList<>();
        LockOptions mine = LockOptions.defaults().owner(Owner.create());
        Lease fixed;
        Lease all;
        for (int ttl = 300; ; ttl *= 2) {
            fixed = client.lease(key + "m", mine.ttl(Duration.ofMillis(ttl)).fixed());
            all = client.leaseAll(keys("z", "m", "a"), mine.onLost(heard::add)); // m ends by itself all the same
            if (all.fence(key + "m") == fixed.fence()) {
                break;
            }
            all.close(); // it has ended already
        }
        toLoseOne(all, heard);
        assertThrows(LostException.class, fixed::close);
        free(keys("a", "m", "z"));
    }

    private void toLoseOne(Lease all, List<LostException> heard) throws InterruptedException {
        all.onLost().thenAccept(heard::add);
        until("one is lost", () -> !all.isValid());
        assertEquals(Duration.ZERO, all.remaining());
        until("both are told", () -> heard.size() == 2);
        assertEquals(List.of(key + "m", key + "m"), heard.stream().map(LostException::key).toList());
        assertTrue(taken(key + "a") && taken(key + "z"), "until the work has ended");
        LostException e = assertThrows(LostException.class, all::close);
        assertEquals(key + "m", e.key());
        assertEquals(all.fence(key + "m"), e.fence());
        all.close();
        all.onLost().thenAccept(heard::add); // late, and all the same
        until("the third is told", () -> heard.size() == 3);
    }

    @Test
    void fixed_ones_can_be_extended() throws InterruptedException {
        LockOptions options = LockOptions.defaults().ttl(Duration.ofSeconds(5)).fixed();
        try (Lease all = connect().leaseAll(keys("a", "b"), options)) {
            all.extend(Duration.ofSeconds(9));
            assertTrue(all.remaining().compareTo(Duration.ofSeconds(5)) > 0);
            all.extend();
            Until.refused(Code.INVALID, () -> all.extend(Duration.ofDays(100)));
            assertTrue(all.isValid());
        }
    }

    @Test
    void the_daemons_end_loses_all_and_tells_once() throws InterruptedException {
        List<LostException> heard = new CopyOnWriteArrayList<>();
        try (Daemon other = Daemon.started()) {
            Sidecar client = closing(Sidecar.create(other.path));
            Lease all = client.leaseAll(keys("a", "b", "c"), LockOptions.defaults().onLost(heard::add));
            other.kill();
            until("it is noticed", () -> !all.isValid());
            until("it is told", () -> !heard.isEmpty());
            assertEquals("connection", heard.get(0).reason());
            CompletionException e = assertThrows(CompletionException.class, all.releaseAsync()::join);
            assertInstanceOf(LostException.class, e.getCause());
        }
        assertEquals(1, heard.size());
    }

    @Test
    void what_cannot_be_is_refused_at_once() throws InterruptedException {
        Sidecar client = connect();
        List<String> tooMany = IntStream.rangeClosed(0, 1024).mapToObj(i -> "k" + i).toList();
        for (List<String> keys : List.of(List.<String>of(), List.of("a", "b", "a"), List.of("a", ""), tooMany)) {
            Until.refused(Code.INVALID, () -> client.leaseAll(keys));
            Until.refused(Code.INVALID, () -> client.leaseAllAsync(keys, Duration.ofDays(1), LockOptions.defaults()));
        }
        assertThrows(NullPointerException.class, () -> client.leaseAll(null));
        SidecarLock lock = client.lock(key);
        lock.lock();
        List<String> tooLong = IntStream.range(0, 200).mapToObj(i -> "%0500d".formatted(i)).toList();
        Until.refused(Code.INVALID, () -> client.leaseAll(tooLong));
        assertTrue(lock.isHeldByOwner());
        client.leaseAll(tooMany.subList(0, 1024)).close();
        assertTrue(lock.isHeldByOwner(), "the connection lives on");
    }

    @Test
    void a_release_takes_more_room_than_the_acquire() throws InterruptedException {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key);
        lock.lock();
        List<String> keys = IntStream.range(0, 129).mapToObj(i -> key + "%0460d".formatted(i)).toList();
        int each = keys.get(0).length() + 3;
        assertTrue(129 * each < 65_500 && 129 * (each + 10) > 65_536, "or the test is none");
        Lease all = client.leaseAll(keys);
        CompletableFuture<Lease> next = connect().leaseAllAsync(keys, Duration.ofDays(1), LockOptions.defaults());
        all.close();
        next.join().releaseAsync().join();
        assertTrue(lock.isHeldByOwner(), "the connection lives on");
    }

    @Test
    void callers_in_any_order_exclude_each_other_and_never_wait_in_a_circle() {
        int count = 4;
        AtomicIntegerArray inside = new AtomicIntegerArray(count);
        List<Background<Void>> workers = new ArrayList<>();
        Sidecar one = connect();
        Sidecar two = connect();
        for (int t = 0; t < 6; t++) {
            Random random = new Random(t);
            Sidecar client = t % 2 == 0 ? one : two;
            workers.add(running(() -> {
                for (int n = 0; n < 60; n++) {
                    List<Integer> some = new ArrayList<>(IntStream.range(0, count).boxed().toList());
                    Collections.shuffle(some, random);
                    List<Integer> mine = some.subList(0, 1 + random.nextInt(count));
                    try (Lease all = client.leaseAll(mine.stream().map(i -> key + i).toList())) {
                        assertTrue(all.isValid());
                        mine.forEach(i -> assertEquals(1, inside.incrementAndGet(i)));
                        Thread.yield();
                        mine.forEach(i -> assertEquals(0, inside.decrementAndGet(i)));
                    }
                }
            }));
        }
        workers.forEach(Background::result);
    }
}
