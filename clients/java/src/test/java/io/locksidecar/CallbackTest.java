package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Callbacks and executors that fail or wait, and the exceptions of their callers. */
class CallbackTest extends OnDaemon {
    @Test
    void an_executor_that_fails_keeps_nobody_waiting() throws InterruptedException {
        AtomicBoolean fails = new AtomicBoolean();
        Queue<String> heard = new ConcurrentLinkedQueue<>();
        Executor executor = task -> {
            if (fails.get()) {
                throw new OutOfMemoryError("unable to create native thread");
            }
            new Thread(task).start();
        };
        try (Daemon other = Daemon.started(); Sidecar holder = Sidecar.create(other.path)) {
            Sidecar client = closing(Sidecar.builder()
                    .socket(other.path).executor(executor).patience(Duration.ofMillis(50)).build());
            List<Lease> busy = new ArrayList<>();
            List<Background<?>> waiting = new ArrayList<>();
            List<CompletableFuture<Lease>> futures = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                String k = key + i;
                busy.add(holder.lease(k));
                client.lease(k + "mine", LockOptions.defaults().onLost(lost -> heard.add(lost.key())));
                waiting.add(running(client.lock(k)::lock));
                futures.add(client.leaseAsync(k));
                untilWaiting(holder, k, 2);
            }
            fails.set(true);
            other.kill();
            for (Background<?> w : waiting) {
                assertInstanceOf(UnavailableException.class, w.thrown());
            }
            for (CompletableFuture<Lease> f : futures) {
                assertInstanceOf(UnavailableException.class, background(f::join).thrown());
            }
            until("each listener is told", () -> heard.size() == 4);
            assertTrue(busy.stream().noneMatch(Lease::isValid));
        }
    }

    @Test
    void a_listener_that_throws_keeps_nobody_waiting() throws InterruptedException {
        Sidecar client = closing(Sidecar.builder().socket(daemon.path).executor(Runnable::run).build());
        Queue<String> heard = new ConcurrentLinkedQueue<>();
        for (int i = 0; i < 4; i++) {
            client.lease(key + i, LockOptions.defaults().ttl(Duration.ofMillis(100)).fixed().onLost(lost -> {
                heard.add(lost.key());
                throw new StackOverflowError();
            }));
        }
        until("each is told", () -> heard.size() == 4);
        client.lease(key).close();
    }

    @Test
    void callers_come_before_listeners() throws InterruptedException {
        CountDownLatch released = new CountDownLatch(1);
        CountDownLatch told = new CountDownLatch(1);
        AtomicBoolean before = new AtomicBoolean();
        try (Peer peer = new Peer();
                Sidecar client = Sidecar.builder().socket(peer.path).executor(Runnable::run).build()) {
            SidecarLock lock = client.lock("mine");
            Background<Void> unlocked = running(() -> {
                lock.lock();
                lock.unlock();
                released.countDown();
            });
            peer.welcome();
            peer.grant(60_000);
            peer.expect(Codes.RELEASE); // not answered: the end of the connection releases it
            Background<Lease> leased = background(
                    () -> client.lease("other", LockOptions.defaults().onLost(lost -> { // on the client's own thread here
                        before.set(await(released));
                        told.countDown();
                    })));
            peer.grant(60_000, Peer.FENCE + 1, 0, 0);
            leased.result();
            peer.hangUp();
            unlocked.result();
            assertTrue(await(told));
            assertTrue(before.get());
        }
    }

    private static boolean await(CountDownLatch latch) {
        try {
            return latch.await(Until.BOUND / 2, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    @Test
    void callbacks_may_wait_for_one_another() throws InterruptedException {
        Sidecar client = connect();
        int count = 24;
        CountDownLatch all = new CountDownLatch(count);
        List<CompletableFuture<Void>> done = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String k = key + i;
            done.add(client.leaseAsync(k).thenAccept(lease -> {
                all.countDown();
                assertTrue(await(all), "all of them run at once");
                client.leaseAsync(k + "inner").join().close();
                lease.close();
            }));
        }
        done.forEach(f -> running(f::join).result());
    }

    @Test
    void callbacks_beyond_the_threads_wait_in_a_queue() {
        Callbacks callbacks = new Callbacks("test", 3, Long.MAX_VALUE);
        AtomicInteger begun = new AtomicInteger();
        CountDownLatch over = new CountDownLatch(1);
        Set<Thread> threads = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 100; i++) {
            callbacks.execute(() -> {
                threads.add(Thread.currentThread());
                begun.incrementAndGet();
                await(over);
            });
        }
        until("some run", () -> begun.get() == 3);
        callbacks.close();
        over.countDown();
        until("all that was handed over runs", () -> begun.get() == 100);
        CountDownLatch late = new CountDownLatch(1);
        callbacks.execute(late::countDown);
        assertTrue(await(late));
        until("no thread is left", () -> threads.stream().noneMatch(Thread::isAlive));
        assertTrue(threads.size() <= 4, () -> "threads: " + threads.size());
    }

    @Test
    void callbacks_that_block_do_not_stop_those_behind_them() {
        Callbacks callbacks = new Callbacks("test", 3, 20);
        CountDownLatch all = new CountDownLatch(20);
        CountDownLatch told = new CountDownLatch(1);
        for (int i = 0; i < 20; i++) {
            callbacks.execute(() -> {
                all.countDown();
                assertTrue(await(all), "each waits for all others");
                assertTrue(await(told));
            });
        }
        callbacks.execute(told::countDown);
        assertTrue(await(told));
        callbacks.close();
    }

    @Test
    void callbacks_behind_each_other_use_a_bounded_number_of_threads() {
        Callbacks callbacks = new Callbacks("test", 3, Long.MAX_VALUE);
        Set<Thread> threads = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 200; i++) {
            CountDownLatch ran = new CountDownLatch(1);
            callbacks.execute(() -> {
                threads.add(Thread.currentThread());
                ran.countDown();
            });
            assertTrue(await(ran));
        }
        callbacks.close();
        assertTrue(threads.stream().filter(Thread::isAlive).count() <= 3, () -> "threads: " + threads);
    }

    @Test
    void futures_that_block_do_not_keep_a_loss_from_its_listener() throws InterruptedException {
        blocked(connect());
    }

    @Test
    void callbacks_that_an_executor_refuses_have_a_bounded_number_of_threads_too() throws InterruptedException {
        blocked(closing(Sidecar.builder().socket(daemon.path).executor(task -> {
            throw new RejectedExecutionException();
        }).build()));
    }

    private void blocked(Sidecar client) throws InterruptedException {
        CountDownLatch told = new CountDownLatch(1);
        AtomicInteger blocked = new AtomicInteger();
        int count = 3 * Callbacks.THREADS;
        List<CompletableFuture<Void>> done = new ArrayList<>();
        Thread test = Thread.currentThread();
        for (int i = 0; i < count; i++) {
            done.add(client.leaseAsync(key + i).thenAccept(lease -> {
                if (Thread.currentThread() != test) { // it runs here if the lease came before thenAccept
                    blocked.incrementAndGet();
                    assertTrue(await(told), "the loss is told meanwhile");
                }
                lease.releaseAsync();
            }));
        }
        until("all threads are busy", () -> blocked.get() >= Callbacks.THREADS);
        assertTrue(blocked.get() < count, "their number has a bound");
        Lease kept = client.lease(key + "lost", LockOptions.defaults().ttl(Duration.ofMillis(100)).fixed()
                .onLost(lost -> told.countDown()));
        done.forEach(f -> running(f::join).result());
        java.lang.ref.Reference.reachabilityFence(kept); // a client that is thrown away releases its locks: they are not lost
    }

    @Test
    void a_client_whose_thread_cannot_start_fails_and_tries_again() {
        Sidecar client = connect();
        client.link.threads = link -> {
            throw new OutOfMemoryError("unable to create native thread");
        };
        SidecarLock lock = client.lock(key);
        for (int i = 0; i < 2; i++) {
            assertInstanceOf(UnavailableException.class, running(lock::lock).thrown());
            assertInstanceOf(UnavailableException.class, running(client::ping).thrown());
        }
        client.link.threads = IoThread::new;
        running(lock::lock).result();
        assertTrue(lock.isLocked());
    }

    @Test
    void a_traceparent_that_fails_leaves_no_owner_behind() {
        Sidecar client = closing(Sidecar.builder().socket(daemon.path).traceparent(() -> {
            throw new IllegalStateException("no trace");
        }).build());
        SidecarLock lock = client.lock(key);
        assertThrows(IllegalStateException.class, lock::lock);
        assertEquals(0, lock.handle.owners.size());
    }

    @Test
    void each_caller_has_an_exception_of_its_own() {
        try (Sidecar client = Sidecar.builder()
                .socket(Path.of("/nowhere/at/all")).patience(Duration.ofMillis(300)).build()) {
            Set<Throwable> thrown = Collections.newSetFromMap(new IdentityHashMap<>());
            List<Background<Void>> waiting = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                waiting.add(running(client.lock(key + i)::lock));
            }
            for (Background<Void> w : waiting) {
                Throwable e = assertInstanceOf(UnavailableException.class, w.thrown());
                assertTrue(e.getMessage().startsWith("no daemon at /nowhere/at/all"), e.getMessage());
                assertInstanceOf(java.io.IOException.class, e.getCause());
                thrown.add(e);
            }
            assertEquals(8, thrown.size());
        }
    }

    @Test
    void each_listener_has_an_exception_of_its_own() throws InterruptedException {
        Sidecar client = connect();
        Set<LostException> told = Collections.synchronizedSet(Collections.newSetFromMap(new IdentityHashMap<>()));
        LockOptions mine = LockOptions.defaults().ttl(Duration.ofMillis(200)).fixed().owner(Owner.create());
        Lease lease = client.lease(key, mine.onLost(told::add));
        client.lease(key, mine.onLost(lost -> told.add(lost)));
        lease.onLost().thenAccept(told::add);
        lease.onLost().thenAccept(told::add);
        Lease leases = client.leaseAll(List.of(key + "2"), mine.onLost(told::add));
        leases.onLost().thenAccept(told::add);
        until("all are told", () -> told.size() == 6);
        assertThrows(LostException.class, lease::close);
    }

    @Test
    void every_kind_of_failure_can_be_made_again() {
        for (Code code : Code.values()) {
            LockException e = LockException.of(code, "why", null);
            LockException again = e.again();
            assertEquals(e.getClass(), again.getClass());
            assertEquals(code, again.code());
            assertEquals("why", again.getMessage());
        }
    }
}
