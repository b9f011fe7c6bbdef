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
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.Test;

/** Between a loss and its release, neither the owner nor another handle of its thread can acquire the key. */
class LossTest extends OnDaemon {
    private static final LockOptions SHORT = LockOptions.defaults().ttl(Duration.ofMillis(200)).fixed();
    private static final LockOptions BY_THREAD = LockOptions.defaults().ownedByThread();

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

    @Test
    void a_scope_of_another_lease_inside_a_lost_one_does_not_begin() throws InterruptedException {
        Sidecar client = connect();
        Sidecar other = connect();
        List<String> done = new ArrayList<>();
        LostException e = assertThrows(LostException.class, () -> {
            try (Lease outer = client.lease(key, SHORT)) {
                try (Lease theirs = other.lease(key)) {
                    done.add("others " + (theirs.fence() > outer.fence()));
                }
                try (Lease inner = client.lease(key)) {
                    done.add("inner " + inner.fence());
                }
            }
        });
        assertEquals(List.of("others true"), done);
        assertEquals(1, e.getSuppressed().length, "the end of the outer scope says so too");
        assertEquals("fixed_end", ((LostException) e.getSuppressed()[0]).reason());
        client.lease(key).close();
    }

    /** Returns acquires of a key by other handles and leases, none of which has a named owner. */
    private static List<Until.Task> others(Sidecar client, String key) {
        SidecarLock second = client.lock(key);
        return List.of(
                second::lock, second::lockInterruptibly, second::tryLock, () -> second.tryLock(0, TimeUnit.SECONDS),
                () -> second.tryLock(1, TimeUnit.MINUTES),
                client.readWriteLock(key).readLock()::tryLock, client.readWriteLock(key).writeLock()::lock,
                () -> client.lease(key), () -> client.lease(key, Duration.ofMinutes(1)), () -> client.tryLease(key),
                () -> client.lease(key, LockOptions.defaults().shared()),
                () -> client.leaseAll(List.of(key + "other", key)), () -> client.tryLeaseAll(List.of(key)),
                () -> client.election(key, term -> { }).run());
    }

    @Test
    void another_handle_of_the_thread_does_not_enter_a_lost_lock() throws InterruptedException {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key);
        lock.lock();
        lock.lock();
        long fence = lock.fence();
        force(key);
        until("it is lost", () -> !lock.isHeldByOwner());
        LockOptions named = LockOptions.defaults().owner(Owner.create());
        List<Until.Task> all = new ArrayList<>(others(client, key));
        all.addAll(List.of(
                client.lock(key, BY_THREAD)::tryLock, () -> client.lease(key, BY_THREAD),
                client.lock(key, named)::lock, () -> client.tryLease(key, named)));
        for (int unlocks = 0; unlocks < 2; unlocks++) {
            for (Until.Task again : all) {
                LostException e = assertThrows(LostException.class, again::run);
                assertEquals(List.of(key, fence, "forced"), List.of(e.key(), e.fence(), e.reason()));
                assertTrue(e.getMessage().matches("lock \"" + key + "\" was lost: forced; its handle \\(SidecarLock@"
                        + "[0-9a-f]+, fence " + fence + "\\) must release it before this thread can acquire it again"),
                        e.getMessage());
            }
            client.semaphore(key, 1).acquire().close(); // a semaphore is independent of the lock
            lost(lock::unlock, fence, "forced");
        }
        background(() -> client.lease(key)).result().close();
        client.lease(key).close();
        client.lease(key + "other", Duration.ZERO).close();
    }

    @Test
    void another_handle_of_the_thread_does_not_enter_a_lost_lease() throws InterruptedException {
        Sidecar client = connect();
        for (LockOptions mine : List.of(SHORT, SHORT.shared(), SHORT.ownedByThread())) {
            Lease lease = client.lease(key, mine);
            until("it has ended", () -> !lease.isValid());
            for (Until.Task again : others(client, key)) {
                lost(again, lease.fence(), "fixed_end");
            }
            background(() -> client.lease(key)).result().close(); // another thread is another owner
            client.leaseAsync(key).join().close(); // belongs to no thread
            lost(lease::close, lease.fence(), "fixed_end");
            client.lease(key).close();
        }
    }

    @Test
    void another_handle_of_the_thread_does_not_enter_one_of_several_that_was_lost() throws InterruptedException {
        Sidecar client = connect();
        Lease both = client.leaseAll(List.of(key, key + "2"));
        long fence = both.fence(key);
        force(key);
        until("one is lost", () -> !both.isValid());
        for (Until.Task again : others(client, key)) {
            lost(again, fence, "forced");
        }
        assertFalse(client.lock(key + "2").tryLock(), "it is held");
        Until.refused(Code.ALREADY_HELD, () -> client.lease(key + "2"));
        lost(both::close, fence, "forced");
        client.leaseAll(List.of(key, key + "2")).close();
    }

    @Test
    void a_named_owner_acquires_what_a_lease_of_its_thread_has_lost() throws InterruptedException {
        Sidecar client = connect();
        for (LockOptions mine : List.of(SHORT, SHORT.owner(Owner.create()))) {
            Lease lease = client.lease(key, mine);
            until("it has ended", () -> !lease.isValid());
            client.lease(key, LockOptions.defaults().owner(Owner.create())).close(); // so it could wait for it, too
            lost(lease::close, lease.fence(), "fixed_end");
        }
        Lease named = client.lease(key, SHORT.owner(Owner.create()));
        until("it has ended", () -> !named.isValid());
        client.lease(key).close();
    }

    @Test
    void a_lost_lease_that_another_thread_closes_frees_the_key_for_its_thread() throws InterruptedException {
        Sidecar client = connect();
        Lease lease = client.lease(key, SHORT);
        until("it has ended", () -> !lease.isValid());
        lost(() -> client.tryLease(key), lease.fence(), "fixed_end");
        assertInstanceOf(LostException.class, running(lease::close).thrown());
        client.lease(key).close();
    }

    @Test
    void every_lost_reader_of_a_thread_is_to_be_released() throws InterruptedException {
        Sidecar client = connect();
        LockOptions shared = SHORT.shared().ttl(Duration.ofSeconds(2)); // the first one must not end before the last one begins
        List<Lease> readers = List.of(client.lease(key, shared), client.lease(key, shared), client.lease(key, shared));
        for (int i : new int[] {1, 2, 0}) {
            until("it has ended", () -> !readers.get(i).isValid());
            LostException e = assertThrows(LostException.class, () -> client.tryLease(key));
            assertEquals("fixed_end", e.reason());
            lost(readers.get(i)::close, readers.get(i).fence(), "fixed_end");
        }
        client.lease(key).close();
    }

    @Test
    void a_discarded_handle_that_has_lost_its_lock_does_not_block_its_thread() throws Exception {
        Sidecar client = connect();
        Deque<Until.Task> discarded = new ArrayDeque<>(List.of( // it keeps the locks, too
                client.lock(key, SHORT)::lock, client.readWriteLock(key, SHORT).readLock()::lock,
                () -> client.lease(key, SHORT), () -> client.leaseAll(List.of(key), SHORT),
                () -> { // what refers to itself by its listeners
                    Lease[] lease = new Lease[1];
                    lease[0] = client.lease(key, SHORT.onLost(lost -> System.identityHashCode(lease[0])));
                    lease[0].onLost().thenRun(() -> System.identityHashCode(lease[0]));
                }));
        while (!discarded.isEmpty()) {
            discarded.remove().run();
            AtomicReference<Lease> next = new AtomicReference<>();
            until("it does not block", () -> {
                System.gc();
                try {
                    next.set(client.lease(key));
                } catch (LockException e) {
                    assertTrue(e instanceof LostException || e.code() == Code.ALREADY_HELD, e.toString());
                    return false;
                }
                return true;
            });
            next.get().close();
        }
    }

    @Test
    void a_task_of_a_pool_learns_of_a_lost_lock_that_an_earlier_one_has_kept() throws Exception {
        Sidecar client = connect();
        ExecutorService pool = Executors.newSingleThreadExecutor();
        closing(pool::shutdown);
        AtomicReference<SidecarLock> kept = new AtomicReference<>(client.lock(key, SHORT));
        pool.submit(kept.get()::lock).get();
        until("it has ended", () -> client.tryLease(key).map(lease -> {
            lease.close();
            return true;
        }).orElse(false));
        Throwable e = assertThrows(ExecutionException.class, pool.submit(() -> client.lease(key))::get).getCause();
        assertTrue(assertInstanceOf(LostException.class, e).getMessage().contains("(SidecarLock@"), e.getMessage());
        assertInstanceOf(
                LostException.class, assertThrows(ExecutionException.class, pool.submit(kept.get()::unlock)::get).getCause());
        pool.submit(() -> client.lease(key)).get().close();
    }

    @Test
    void lost_locks_that_nobody_can_release_are_forgotten() {
        Sidecar client = connect();
        List<Lease> kept = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            client.lock(key + i, SHORT).lock();
            client.leaseAsync(key + "async" + i, Duration.ofMinutes(1), SHORT).join(); // a try fails if its grant comes late
            int n = i;
            kept.add(background(() -> client.lease(key + "thread" + n, SHORT)).result());
        }
        until("they have ended", () -> kept.stream().noneMatch(Lease::isValid));
        AtomicInteger more = new AtomicInteger();
        until("they are forgotten", () -> {
            System.gc();
            client.lock(key + "more" + more.incrementAndGet(), SHORT.ttl(Duration.ofMillis(20))).lock();
            return client.link.losses.size > 0 && client.link.losses.size < 64;
        });
        for (Lease lease : kept) { // their threads have ended, but they can be closed
            assertEquals("fixed_end", assertThrows(LostException.class, lease::close).reason());
        }
    }

    @Test
    void a_leader_that_has_lost_its_term_acquires_nothing_inside_of_it() throws InterruptedException {
        Sidecar client = connect();
        CountDownLatch again = new CountDownLatch(2);
        List<Throwable> thrown = new CopyOnWriteArrayList<>();
        try (Election election = client.election(key, new Election.Listener() {
            @Override
            public void onElected(Term term) {
                again.countDown();
            }

            @Override
            public void onLost(Term term, Optional<LostException> reason) {
                try {
                    client.lock(key).lock();
                } catch (LockException e) {
                    thrown.add(e);
                }
            }
        })) {
            election.start();
            until("it leads", () -> again.getCount() == 1);
            force(key);
            assertTrue(again.await(Until.BOUND, TimeUnit.SECONDS), "it leads again");
            assertTrue(assertInstanceOf(LostException.class, thrown.get(0)).getMessage().contains("Election[" + key),
                    thrown::toString);
        }
    }

    @Test
    void nothing_is_acquired_inside_a_term_by_its_own_thread() throws Exception {
        Sidecar client = connect();
        CompletableFuture<Term> elected = new CompletableFuture<>();
        CompletableFuture<Void> checked = new CompletableFuture<>();
        List<Term> terms = new CopyOnWriteArrayList<>();
        try (Election election = client.election(key, term -> {
            terms.add(term);
            if (terms.size() > 1) {
                return;
            }
            try {
                Until.refused(Code.ALREADY_HELD, client.lock(key)::lock);
                Until.refused(Code.ALREADY_HELD, () -> client.leaseAll(List.of(key + "2", key)));
                assertFalse(client.lock(key).tryLock());
                client.lease(key + "2").close();
                elected.complete(term);
                assertThrows(InterruptedException.class, new CountDownLatch(1)::await, "until the term is over");
                for (Until.Task again : others(client, key)) {
                    lost(again, term.fence(), "forced");
                }
                client.lease(key, LockOptions.defaults().owner(Owner.create())).close();
                background(() -> client.lease(key)).result().close(); // another thread is another owner
                checked.complete(null);
            } catch (Throwable e) {
                elected.completeExceptionally(e);
                checked.completeExceptionally(e);
            }
        })) {
            election.start();
            elected.get(Until.BOUND, TimeUnit.SECONDS);
            force(key);
            checked.get(Until.BOUND, TimeUnit.SECONDS);
            until("it leads again", () -> terms.size() == 2 && election.isLeader());
        }
    }

    @Test
    void a_key_of_another_daemon_is_another_lock_inside_a_term() throws Exception {
        CompletableFuture<Void> checked = new CompletableFuture<>();
        try (Daemon second = Daemon.started();
                Sidecar client = Sidecar.create(daemon.path);
                Sidecar other = Sidecar.create(second.path);
                Election election = client.election(key, term -> {
                    try {
                        Lock lock = other.lock(key);
                        lock.lock();
                        lock.unlock();
                        other.lease(key).close();
                        checked.complete(null);
                    } catch (Throwable e) {
                        checked.completeExceptionally(e);
                    }
                })) {
            election.start();
            checked.get(Until.BOUND, TimeUnit.SECONDS);
        }
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
        Lease several = client.leaseAll(List.of(key, key + "2"), hour);
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

    /** Checks that the end of each of 40 locks has this reason, whether the daemon or the client notices it first. */
    private void ends(String why, Sidecar client, Sidecar other, LockOptions options) throws InterruptedException {
        List<String> reasons = new CopyOnWriteArrayList<>();
        LockOptions told = options.onLost(lost -> reasons.add(lost.reason()));
        List<Lease> all = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            all.add(client.lease(key + i, told));
            if (i % 2 == 0) { // then the daemon may notice it first
                other.leaseAsync(key + i).thenAccept(Lease::releaseAsync);
            }
        }
        for (Lease lease : all) {
            until("it has ended", () -> !lease.isValid());
            assertEquals(why, assertThrows(LostException.class, lease::close).reason());
        }
        until("all are told", () -> reasons.size() == 40);
        reasons.forEach(reason -> assertEquals(why, reason));
    }

    @Test
    void the_end_of_a_fixed_lock_is_called_fixed_end() throws InterruptedException {
        ends("fixed_end", connect(), connect(), LockOptions.defaults().ttl(Duration.ofMillis(100)).fixed());
    }

    @Test
    void the_end_of_a_lock_that_is_not_fixed_is_called_too_long() throws InterruptedException {
        try (Daemon limited = Daemon.started("--max-hold", "200ms");
                Sidecar client = Sidecar.create(limited.path);
                Sidecar other = Sidecar.create(limited.path)) {
            ends("too_long", client, other, LockOptions.defaults());
        }
    }
}
