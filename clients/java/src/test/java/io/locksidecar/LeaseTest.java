package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Lease, blocking and not. */
class LeaseTest extends OnDaemon {
    private static final LockOptions SHORT = LockOptions.defaults().ttl(Duration.ofMillis(200)).fixed();

    private static void expire(Lease lease) {
        until("the lease has ended", () -> !lease.isValid());
    }

    private static Throwable thrown(CompletableFuture<?> future) {
        CompletionException e = assertThrows(CompletionException.class, future::join);
        return e.getCause();
    }

    @Test
    void what_it_says_of_itself() throws InterruptedException {
        Sidecar client = connect();
        Lease lease = client.lease(key);
        assertEquals(key, lease.key());
        assertTrue(lease.isValid());
        assertTrue(lease.fence() > 0);
        assertTrue(lease.remaining().compareTo(Duration.ofSeconds(30)) <= 0);
        assertTrue(lease.toString().contains(key));
        lease.close();
        lease.close();
        assertFalse(lease.isValid());
        assertEquals(Duration.ZERO, lease.remaining());
        assertThrows(NotHeldException.class, lease::extend);
        assertThrows(NotHeldException.class, lease::downgrade);
        assertTrue(lease.releaseAsync().isDone());
        try (Lease next = client.lease(key)) {
            assertTrue(next.fence() > lease.fence());
            lease.close();
            assertTrue(next.isValid(), "a second close frees nobody else's hold");
        }
    }

    @Test
    void each_is_its_own_owner() throws InterruptedException {
        Sidecar client = connect();
        try (Lease lease = client.lease(key)) {
            assertTrue(client.tryLease(key).isEmpty());
            assertFalse(client.lock(key).tryLock());
            Throwable e = running(() -> client.lease(key, Duration.ofMillis(20))).thrown();
            assertInstanceOf(NotAcquiredException.class, e);
            assertTrue(e.getMessage().contains(key));
            running(lease::close).result();
            try (Lease other = client.tryLease(key).orElseThrow()) {
                assertTrue(other.fence() > lease.fence());
            }
        }
    }

    @Test
    void leases_of_one_owner_are_one_hold() throws InterruptedException {
        Sidecar client = connect();
        LockOptions options = LockOptions.defaults().owner(Owner.create());
        Lease one = client.lease(key, options);
        Lease two = client.tryLease(key, Duration.ZERO, options).orElseThrow();
        assertEquals(one.fence(), two.fence());
        one.close();
        assertTrue(two.isValid());
        assertFalse(one.isValid());
        assertTrue(client.tryLease(key).isEmpty());
        two.close();
        client.tryLease(key).orElseThrow().close();
    }

    @Test
    void shared_and_downgraded() throws InterruptedException {
        Sidecar client = connect();
        LockOptions shared = LockOptions.defaults().shared();
        Lease lease = client.lease(key);
        assertTrue(client.tryLease(key, Duration.ZERO, shared).isEmpty());
        long fence = lease.fence();
        lease.downgrade();
        lease.downgrade();
        assertEquals(fence, lease.fence());
        try (Lease reader = client.tryLease(key, Duration.ZERO, shared).orElseThrow()) {
            reader.downgrade();
            lease.close();
            assertTrue(reader.isValid());
            assertTrue(client.tryLease(key).isEmpty());
        }
        client.tryLease(key).orElseThrow().close();
    }

    @Test
    void a_loss_is_told_of() throws InterruptedException {
        List<LostException> heard = new CopyOnWriteArrayList<>();
        Lease lease = connect().lease(key, SHORT.onLost(heard::add));
        lease.onLost().thenAccept(heard::add);
        expire(lease);
        until("both are told", () -> heard.size() == 2);
        lease.onLost().thenAccept(heard::add); // late, and all the same
        until("the third is told", () -> heard.size() == 3);
        for (LostException e : heard) {
            assertEquals(lease.fence(), e.fence());
        }
        assertThrows(LostException.class, lease::extend);
        assertThrows(LostException.class, lease::close);
        lease.close();
        assertEquals(3, heard.size());
    }

    @Test
    void no_loss_is_told_of_without_one() throws InterruptedException {
        Sidecar client = connect();
        List<LostException> heard = new CopyOnWriteArrayList<>();
        Lease lease = client.lease(key);
        lease.onLost().thenAccept(heard::add);
        lease.close();
        Lease other = client.lease(key);
        other.onLost().thenAccept(heard::add);
        client.close();
        assertFalse(other.isValid());
        assertThrows(LostException.class, other::close);
        assertTrue(heard.isEmpty());
    }

    @Test
    void the_end_of_the_body_tells_of_a_loss_and_hides_nothing() {
        Sidecar client = connect();
        assertThrows(LostException.class, () -> {
            try (Lease lease = client.lease(key, SHORT)) {
                expire(lease);
            }
        });
        IllegalStateException e = assertThrows(IllegalStateException.class, () -> {
            try (Lease lease = client.lease(key, SHORT)) {
                expire(lease);
                throw new IllegalStateException();
            }
        });
        assertInstanceOf(LostException.class, e.getSuppressed()[0]);
    }

    @Test
    void extended() throws InterruptedException {
        try (Lease lease = connect().lease(key, LockOptions.defaults().ttl(Duration.ofSeconds(5)).fixed())) {
            lease.extend(Duration.ofSeconds(9));
            assertTrue(lease.remaining().compareTo(Duration.ofSeconds(5)) > 0);
            lease.extend();
            Until.refused(Code.INVALID, () -> lease.extend(Duration.ofDays(100)));
            assertTrue(lease.isValid());
        }
    }

    @Test
    void without_blocking() {
        Sidecar client = connect();
        Lease lease = client.leaseAsync(key).join();
        CompletableFuture<Lease> next = client.leaseAsync(key);
        untilWaiting(client, key, 1);
        assertFalse(next.isDone());
        assertInstanceOf(
                NotAcquiredException.class,
                thrown(client.leaseAsync(key, Duration.ZERO, LockOptions.defaults())));
        assertInstanceOf(
                NotAcquiredException.class,
                thrown(client.leaseAsync(key, Duration.ofMillis(20), LockOptions.defaults())));
        lease.releaseAsync().join();
        next.thenCompose(Lease::releaseAsync).join();
        assertFalse(client.lock(key).isLocked());
    }

    @Test
    void a_chain_of_stages_has_one_owner() {
        Sidecar client = connect();
        LockOptions mine = LockOptions.defaults().owner(Owner.named("chain"));
        List<Long> fences = client.leaseAsync(key, Duration.ofSeconds(10), mine)
                .thenCompose(outer -> client.leaseAsync(key, Duration.ofSeconds(10), mine)
                        .thenCompose(inner -> inner.releaseAsync()
                                .thenCompose(x -> outer.releaseAsync())
                                .thenApply(x -> List.of(outer.fence(), inner.fence()))))
                .join();
        assertEquals(fences.get(0), fences.get(1));
        assertFalse(client.lock(key).isLocked());
    }

    @Test
    void a_lost_lease_is_released_exceptionally() {
        Lease lease = connect().leaseAsync(key, Duration.ZERO, SHORT).join();
        expire(lease);
        assertInstanceOf(LostException.class, thrown(lease.releaseAsync()));
        assertTrue(lease.releaseAsync().isDone());
    }

    @Test
    void cancelling_withdraws() {
        Sidecar client = connect();
        SidecarLock held = client.lock(key);
        held.lock();
        CompletableFuture<Lease> future = client.leaseAsync(key);
        untilWaiting(client, key, 1);
        assertTrue(future.cancel(false));
        untilWaiting(client, key, 0);
        assertThrows(CancellationException.class, future::join);
        CompletableFuture<Lease> late = client.leaseAsync(key).orTimeout(30, TimeUnit.MILLISECONDS);
        assertInstanceOf(TimeoutException.class, thrown(late));
        untilWaiting(client, key, 0);
        held.unlock();
        assertTrue(connect().lock(key).tryLock());
    }

    @Test
    void whatever_is_cancelled_at_whatever_moment_leaves_nothing_held() {
        Sidecar client = connect();
        AtomicInteger granted = new AtomicInteger();
        for (int n = 0; n < 2000; n++) {
            CompletableFuture<Lease> future = client.leaseAsync(key + n % 4);
            for (int spin = n % 97 * 40; spin > 0; spin--) {
                Thread.onSpinWait();
            }
            if (!future.cancel(true)) {
                granted.incrementAndGet();
                future.join().close();
            }
        }
        for (int n = 0; n < 4; n++) {
            SidecarLock lock = connect().lock(key + n);
            lock.lock();
            lock.unlock();
        }
    }

    @Test
    void the_executor_runs_what_is_the_users() {
        List<Thread> threads = new CopyOnWriteArrayList<>();
        Sidecar client = closing(Sidecar.builder().socket(daemon.path).executor(task -> {
            Thread t = new Thread(task);
            threads.add(t);
            t.start();
        }).build());
        Thread ran = client.leaseAsync(key).thenApply(lease -> {
            lease.close(); // it may block
            return Thread.currentThread();
        }).join();
        assertTrue(threads.contains(ran) || ran == Thread.currentThread());
    }

    @Test
    void an_executor_that_was_shut_down_loses_nothing() {
        Sidecar client = closing(Sidecar.builder().socket(daemon.path).executor(task -> {
            throw new java.util.concurrent.RejectedExecutionException();
        }).build());
        client.leaseAsync(key).thenCompose(Lease::releaseAsync).join();
        assertFalse(client.lock(key).isLocked());
    }

    @Test
    void closing_the_client_ends_every_wait() {
        Sidecar client = connect();
        connect().lock(key).lock();
        CompletableFuture<Lease> future = client.leaseAsync(key);
        List<Background<Lease>> waiting = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            waiting.add(background(() -> client.lease(key)));
        }
        untilWaiting(connect(), key, 5);
        client.close();
        Until.failed(Code.CLOSED, thrown(future));
        for (Background<Lease> w : waiting) {
            Until.failed(Code.CLOSED, w.thrown());
        }
        Until.failed(Code.CLOSED, thrown(client.leaseAsync(key)));
        Until.refused(Code.CLOSED, client.lock(key)::tryLock);
        Until.refused(Code.CLOSED, client::ping);
        client.close();
    }

    @Test
    void what_is_refused_is_told_by_the_future() {
        CompletableFuture<Lease> future =
                connect().leaseAsync(key, Duration.ZERO, LockOptions.defaults().ttl(Duration.ofDays(100)));
        Until.failed(Code.INVALID, thrown(future));
        assertSame(LockException.class, LostException.class.getSuperclass().getSuperclass());
    }
}
