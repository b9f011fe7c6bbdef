package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

/** Two handles of one key in one thread: each excludes the other, and neither waits for the other. */
class HandleTest extends OnDaemon {
    private static final LockOptions BY_THREAD = LockOptions.defaults().ownedByThread();

    private static LockOptions named() {
        return LockOptions.defaults().owner(Owner.create());
    }

    @Test
    void a_second_handle_learns_which_handle_holds() throws InterruptedException {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key);
        lock.lock();
        SidecarLock second = client.lock(key);
        List<Until.Task> waits = List.of(
                second::lock, second::lockInterruptibly, () -> second.tryLock(1, TimeUnit.MINUTES),
                () -> client.lease(key), () -> client.lease(key, Duration.ofMinutes(1)),
                () -> client.tryLease(key, Duration.ofMinutes(1), LockOptions.defaults()),
                () -> client.leaseAll(List.of(key + "other", key)),
                () -> client.lease(key, BY_THREAD), client.lock(key, BY_THREAD)::lock,
                () -> client.lease(key, named()), client.lock(key, named())::lock,
                client.readWriteLock(key).readLock()::lock, client.readWriteLock(key).writeLock()::lock,
                client.election(key, term -> { })::run);
        for (Until.Task wait : waits) {
            LockException e = Until.refused(Code.ALREADY_HELD, wait::run);
            assertTrue(e.getMessage().matches("key \"" + key + "\" is already held in this thread by another handle \\("
                    + "SidecarLock@[0-9a-f]+, fence " + lock.fence() + "\\); use that handle, or set .*owner.*share.*"),
                    e.getMessage());
        }
        assertFalse(second.isHeldByOwner());
        assertEquals(0, second.holdCount());
        assertThrows(IllegalMonitorStateException.class, second::unlock);
        lock.lock();
        lock.unlock();
        lock.unlock();
        second.lock();
        assertTrue(second.isHeldByOwner());
        assertFalse(lock.isHeldByOwner());
        second.unlock();
        client.lease(key + "other", Duration.ZERO).close();
    }

    @Test
    void a_try_of_a_second_handle_fails() throws InterruptedException {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key);
        lock.lock();
        assertFalse(client.lock(key).tryLock());
        assertFalse(client.lock(key).tryLock(0, TimeUnit.SECONDS));
        assertFalse(client.lock(key, BY_THREAD).tryLock());
        assertEquals(Optional.empty(), client.tryLease(key));
        assertEquals(Optional.empty(), client.tryLease(key, BY_THREAD));
        assertEquals(Optional.empty(), client.tryLeaseAll(List.of(key)));
        lock.unlock();
        assertTrue(client.lock(key).tryLock());
    }

    @Test
    void a_lease_is_a_handle_of_the_thread_that_acquired_it() throws InterruptedException {
        Sidecar client = connect();
        Lease lease = client.lease(key);
        for (Until.Task wait : List.<Until.Task>of(() -> client.lease(key), client.lock(key)::lock)) {
            LockException e = Until.refused(Code.ALREADY_HELD, wait::run);
            assertTrue(e.getMessage().contains("(Lease, fence " + lease.fence() + ")"), e.getMessage());
        }
        Background<Lease> elsewhere = background(() -> client.lease(key));
        untilWaiting(client, key, 1);
        CompletableFuture<Lease> async = client.leaseAsync(key); // it blocks no thread
        untilWaiting(client, key, 2);
        lease.close();
        elsewhere.result().close();
        async.join().close();
        client.lease(key).close();
    }

    @Test
    void a_named_owner_may_wait_for_a_lease_that_another_thread_closes() throws InterruptedException {
        Sidecar client = connect();
        for (LockOptions first : List.of(LockOptions.defaults(), named())) {
            Lease lease = client.lease(key, first);
            Background<Void> closing = running(() -> {
                untilWaiting(connect(), key, 1);
                lease.close();
            });
            client.lease(key, named()).close();
            closing.result();
        }
    }

    @Test
    void handles_that_share_an_owner_are_one() throws InterruptedException {
        Sidecar client = connect();
        for (LockOptions mine : List.of(BY_THREAD, named())) {
            client.lock(key, mine).lock();
            try (Lease lease = client.lease(key, mine); Lease leases = client.leaseAll(List.of(key), mine)) {
                assertEquals(lease.fence(), leases.fence(key));
            }
            assertEquals(1, client.lock(key, mine).holdCount());
            client.lock(key, mine).unlock();
            assertFalse(client.lock(key).isLocked());
        }
    }

    @Test
    void a_second_reader_is_let_in_unless_a_writer_waits() throws InterruptedException {
        Sidecar client = connect();
        SidecarLock first = client.readWriteLock(key).readLock();
        SidecarLock second = client.readWriteLock(key).readLock();
        first.lock();
        second.lock();
        assertTrue(second.tryLock());
        second.unlock();
        second.unlock();
        client.lease(key, LockOptions.defaults().shared()).close();
        Until.refused(Code.ALREADY_HELD, client.lock(key)::lock);
        Background<Void> writer = running(connect().lock(key)::lock);
        untilWaiting(connect(), key, 1);
        Until.refused(Code.ALREADY_HELD, second::lock);
        assertFalse(second.tryLock());
        first.unlock();
        writer.result();
    }

    @Test
    void many_wait_for_the_keys_that_others_hold() throws InterruptedException {
        Sidecar client = connect();
        Sidecar other = connect();
        LockOptions shared = LockOptions.defaults().shared();
        List<String> keys = List.of(key + "3", key + "1", key + "2");
        for (String theirs : List.of(key + "1", key + "3")) { // before and after ours in the daemon's order
            Lease busy = other.lease(theirs);
            Background<List<Long>> all = background(() -> {
                try (Lease ours = client.lease(key + "2", shared); Lease leases = client.leaseAll(keys, shared)) {
                    return List.of(ours.fence(), leases.fence(key + "2"));
                }
            });
            untilWaiting(client, theirs, 1);
            other.tryLease(key + "2", shared).orElseThrow().close();
            busy.close();
            assertEquals(2, all.result().size());
        }
        for (String k : List.of(key + "1", key + "3")) {
            other.lease(k, Duration.ofMinutes(1)).close(); // the keys that it waited for are free again
        }
    }

    @Test
    void many_do_not_wait_for_a_writer_that_waits_for_this_thread() throws InterruptedException {
        Sidecar client = connect();
        Sidecar other = connect();
        LockOptions shared = LockOptions.defaults().shared();
        Lease theirs = other.lease(key + "1");
        Background<Void> all = running(() -> {
            client.lease(key + "2", shared); // closed with the client
            client.leaseAll(List.of(key + "1", key + "2"), shared);
        });
        untilWaiting(client, key + "1", 1);
        Background<Lease> writer = background(() -> other.lease(key + "2"));
        untilWaiting(client, key + "2", 1);
        theirs.close();
        LockException e = Until.failed(Code.ALREADY_HELD, all.thrown());
        assertTrue(e.getMessage().contains("\"" + key + "2\""), e.getMessage());
        other.lease(key + "1", Duration.ofMinutes(1)).close();
        assertFalse(writer.isDone());
    }

    @Test
    void one_of_several_does_not_wait_for_writers_that_all_wait_for_this_thread() throws InterruptedException {
        Sidecar client = connect();
        Sidecar other = connect();
        LockOptions shared = LockOptions.defaults().shared();
        List<String> keys = List.of(key + "1", key + "2");
        for (String one : keys) {
            client.lease(one, shared); // closed with the client
        }
        Background<Lease> writer = background(() -> other.lease(key + "1"));
        untilWaiting(client, key + "1", 1);
        client.leaseAny(keys, shared).close(); // no writer waits for the other key
        Background<Lease> second = background(() -> other.lease(key + "2"));
        untilWaiting(client, key + "2", 1);
        Until.refused(Code.ALREADY_HELD, () -> client.tryLeaseAny(keys, Duration.ofSeconds(20), shared));
        assertFalse(writer.isDone() || second.isDone());
    }

    @Test
    void many_that_time_out_or_are_given_up_leave_nothing() throws InterruptedException {
        Sidecar client = connect();
        Sidecar other = connect();
        LockOptions shared = LockOptions.defaults().shared();
        List<String> keys = List.of(key + "2", key + "1", key + "3");
        Lease theirs = other.lease(key + "3");
        Background<Optional<Lease>> late = background(() -> {
            client.lease(key + "2", shared);
            return client.tryLeaseAll(keys, Duration.ofMillis(20), shared);
        });
        assertEquals(Optional.empty(), late.result());
        Background<Void> interrupted = running(() -> {
            client.lease(key + "2", shared);
            client.leaseAll(keys, shared);
        });
        untilWaiting(client, key + "3", 1);
        interrupted.thread.interrupt();
        assertInstanceOf(InterruptedException.class, interrupted.thrown());
        untilWaiting(client, key + "3", 0);
        theirs.close();
        other.leaseAll(List.of(key + "1", key + "3"), Duration.ofMinutes(1)).close();
    }

    @Test
    void several_holds_of_a_thread_each_count() throws InterruptedException {
        Sidecar client = connect();
        LockOptions shared = LockOptions.defaults().shared();
        List<Lease> readers = List.of(
                client.lease(key, shared), client.lease(key, shared), client.lease(key, shared));
        for (int i : new int[] {1, 2, 0}) {
            LockException e = Until.refused(Code.ALREADY_HELD, () -> client.lease(key));
            assertTrue(readers.stream().filter(Lease::isValid).anyMatch(r -> e.getMessage().contains("" + r.fence())));
            readers.get(i).close();
        }
        client.lease(key).close();
    }

    @Test
    void an_election_holds_in_the_thread_of_its_campaign() throws InterruptedException {
        Sidecar client = connect();
        CountDownLatch begun = new CountDownLatch(1);
        AtomicReference<Throwable> thrown = new AtomicReference<>();
        try (Election election = client.election(key, new Election.Listener() {
            @Override
            public void onElected(Term term) {
                begun.countDown();
            }

            @Override
            public void onLost(Term term, Optional<LostException> reason) { // before the release
                try {
                    client.lock(key).lock();
                } catch (LockException e) {
                    thrown.set(e);
                }
            }
        })) {
            election.start();
            assertTrue(begun.await(Until.BOUND, TimeUnit.SECONDS));
        }
        Until.failed(Code.ALREADY_HELD, thrown.get());
        assertTrue(thrown.get().getMessage().contains("Election[" + key), thrown.get().getMessage());
    }

    private static void lost(Until.Task acquire, long fence) {
        LostException e = assertThrows(LostException.class, acquire::run);
        assertEquals(List.of(fence, "connection"), List.of(e.fence(), e.reason()));
    }

    @Test
    void a_hold_that_ended_with_its_connection_is_lost_and_blocks_its_thread() {
        try (Daemon other = Daemon.started(); Sidecar client = Sidecar.create(other.path)) {
            SidecarLock lock = client.lock(key);
            lock.lock();
            long fence = lock.fence();
            other.kill();
            Until.until("it is lost", () -> !lock.isHeldByOwner());
            SidecarLock second = client.lock(key);
            lost(second::tryLock, fence);
            other.start();
            for (Until.Task again : List.<Until.Task>of(second::tryLock, second::lock, () -> client.lease(key))) {
                lost(again, fence);
            }
            background(() -> client.lease(key)).result().close(); // on the new connection: another thread is another owner
            lost(lock::unlock, fence);
            second.lock();
            assertTrue(second.fence() > fence);
        }
    }
}
