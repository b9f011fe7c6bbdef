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
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.junit.jupiter.api.Test;

/** Releases without confirmation, kept holds, one of several keys, and unlocking by force: on the wire. */
class ReleaseTest extends OnPeer {
    private final Queue<LostException> told = new ConcurrentLinkedQueue<>();

    @Test
    void a_quiet_release_waits_for_no_answer() {
        SidecarLock lock = held(60_000);
        lock.unlockUnconfirmed();
        assertEquals(List.of(3L, Codes.QUIET_ID, "k", number, Peer.FENCE, 4L), peer.expect(Codes.RELEASE));
        assertFalse(lock.isHeldByOwner());
        assertThrows(IllegalMonitorStateException.class, lock::unlockUnconfirmed);
        assertEquals(0, Until.inFlight(conn()));
        Background<Void> again = running(lock::lock);
        peer.grant(60_000, Peer.FENCE + 1, 0, 0);
        again.result();
        assertTrue(lock.isHeldByOwner());
    }

    @Test
    void options_and_clients_say_whether_releases_are_confirmed() {
        client.close();
        client = Sidecar.builder().socket(peer.path).confirm(false).build();
        Background<Lease> lease = background(() -> client.lease("k"));
        peer.welcome();
        peer.grant(60_000);
        lease.result().close();
        assertEquals(4L, peer.expect(Codes.RELEASE).get(5));
        lease = background(() -> client.lease("k", LockOptions.defaults().confirm(true)));
        peer.grant(60_000);
        running(lease.result()::close);
        assertEquals(0L, peer.expect(Codes.RELEASE).get(5));
    }

    @Test
    void several_keys_are_released_quietly_one_by_one() {
        Background<Lease> all = background(
                () -> client.leaseAll(List.of("a", "b"), LockOptions.defaults().owner(owner).confirm(false)));
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE_MANY);
        long until = Peer.millis() + 60_000;
        peer.say(0, q.get(1), List.of(List.of(7, 60_000, until, 1, 0, 0), List.of(8, 60_000, until, 1, 0, 0)));
        all.result().close();
        assertEquals(List.of("a", number, 7L, 4L), peer.expect(Codes.RELEASE).subList(2, 6));
        assertEquals(List.of("b", number, 8L, 4L), peer.expect(Codes.RELEASE).subList(2, 6));
    }

    @Test
    void a_failed_quiet_release_is_a_loss() {
        client.close();
        Queue<LostException> all = new ConcurrentLinkedQueue<>();
        client = Sidecar.builder().socket(peer.path).onLost(all::add).build();
        LockOptions options = LockOptions.defaults().owner(owner).onLost(told::add);
        SidecarLock lock = client.lock("k", options);
        Background<Void> acquired = running(lock::lock);
        peer.welcome();
        peer.grant(60_000);
        acquired.result();
        lock.unlockUnconfirmed();
        acquired = running(lock::lock);
        peer.expect(Codes.RELEASE);
        peer.grant(60_000, Peer.FENCE + 1, 0, 0);
        acquired.result();
        peer.say(68, 0, "k", number, Peer.FENCE, 7, "the store is away");
        peer.say(68, 0, "other", number, 5, 3, "no such hold");
        until("they are told", () -> told.size() == 1 && all.size() == 2);
        assertEquals("unconfirmed", told.peek().reason());
        assertEquals(Peer.FENCE, told.peek().fence());
        assertTrue(told.peek().getMessage().contains("the store is away"));
        assertTrue(all.stream().anyMatch(e -> e.key().equals("other") && e.reason().equals("gone")));
        assertTrue(lock.isHeldByOwner(), "a later hold");
        peer.say(64, 0, "k", number, Peer.FENCE + 1, 4);
        until("they are told of a loss, too", () -> told.size() == 2 && all.size() == 3);
    }

    @Test
    void a_failed_quiet_release_of_one_of_several_keys_is_a_loss() {
        LockOptions options = LockOptions.defaults().owner(owner).confirm(false).onLost(told::add);
        Background<Lease> all = background(() -> client.leaseAll(List.of("a", "b"), options));
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE_MANY);
        long until = Peer.millis() + 60_000;
        peer.say(0, q.get(1), List.of(List.of(7, 60_000, until, 1, 0, 0), List.of(8, 60_000, until, 1, 0, 0)));
        all.result().close();
        peer.expect(Codes.RELEASE);
        peer.expect(Codes.RELEASE);
        peer.say(68, 0, "b", number, 8, 3, "no such hold");
        until("it is told", () -> !told.isEmpty());
        assertEquals("b", told.peek().key());
        assertEquals("gone", told.peek().reason());
    }

    @Test
    void a_lost_hold_is_not_released_quietly() {
        SidecarLock lock = held(60_000);
        peer.say(64, 0, "k", number, Peer.FENCE, 4);
        until("it is lost", () -> !lock.isHeldByOwner());
        assertThrows(LostException.class, lock::check);
        assertThrows(LostException.class, lock::unlockUnconfirmed);
        assertThrows(NotHeldException.class, lock::check);
    }

    @Test
    void a_loss_that_crosses_the_release_has_its_reason() {
        SidecarLock lock = held(60_000);
        Background<Void> released = running(lock::unlock);
        List<?> q = peer.expect(Codes.RELEASE);
        peer.say(64, 0, "k", number, Peer.FENCE, 4);
        peer.say(3, q.get(1), "no such hold");
        assertEquals("forced", assertInstanceOf(LostException.class, released.thrown()).reason());
    }

    @Test
    void check_does_nothing_while_it_is_held() {
        SidecarLock lock = held(60_000);
        lock.check();
        running(lock::unlock);
        peer.released();
        until("it is released", () -> !lock.isHeldByOwner());
        Until.refused(Code.NOT_HELD, lock::check);
    }

    @Test
    void a_kept_hold_may_be_released_now() {
        LockOptions options = LockOptions.defaults().owner(owner).keep(Duration.ofMinutes(10));
        Background<Lease> lease = background(() -> client.lease("k", options));
        peer.welcome();
        assertEquals(List.of("k", number, 0L, -1L, 0L, 0L, 0L, "", 600_000L), peer.grant(60_000).subList(2, 11));
        Background<Void> closed = running(lease.result()::closeNow);
        assertEquals(16L, peer.released().get(5));
        closed.result();
    }

    @Test
    void a_kept_hold_stays_kept_if_the_connection_ends_before_it_is_released_now() {
        LockOptions options = LockOptions.defaults().owner(owner).keep(Duration.ofMinutes(10));
        SidecarLock lock = client.lock("k", options);
        for (boolean hangs : List.of(false, true)) {
            Background<Void> unlocked = running(() -> {
                lock.lock();
                lock.unlockNow();
            });
            peer.welcome();
            peer.grant(60_000);
            peer.expect(Codes.RELEASE);
            if (hangs) {
                conn().die(client.link.silent(), "connection");
            }
            peer.hangUp();
            Until.failed(Code.UNKNOWN, unlocked.thrown());
            assertEquals(0, lock.holdCount());
        }
        Background<Lease> lease = background(() -> client.lease("k", options));
        peer.welcome();
        peer.grant(60_000);
        Background<Void> closed = running(lease.result()::closeNow);
        peer.expect(Codes.RELEASE);
        peer.hangUp();
        Until.failed(Code.UNKNOWN, closed.thrown());
    }

    @Test
    void the_end_of_the_connection_releases_other_holds() {
        for (boolean now : List.of(false, true)) { // what is kept is to stay closed unless it is released now
            LockOptions options = now ? LockOptions.defaults() : LockOptions.defaults().keep(Duration.ofMinutes(10));
            SidecarLock lock = client.lock("k", options);
            Background<Void> unlocked = running(() -> {
                lock.lock();
                if (now) {
                    lock.unlockNow();
                } else {
                    lock.unlock();
                }
            });
            peer.welcome();
            peer.grant(60_000);
            peer.expect(Codes.RELEASE);
            peer.hangUp();
            unlocked.result();
        }
    }

    @Test
    void a_release_of_a_kept_hold_that_the_store_has_yet_to_confirm_continues() {
        SidecarLock lock = client.lock("k", LockOptions.defaults().keep(Duration.ofMinutes(10)));
        Background<Void> unlocked = running(() -> {
            lock.lock();
            lock.unlockNow();
        });
        peer.welcome();
        peer.grant(60_000);
        peer.say(7, peer.expect(Codes.RELEASE).get(1), "the store does not answer");
        unlocked.result();
    }

    @Test
    void a_kept_grant_that_nobody_wants_is_not_kept() {
        Background<Lease> lease = background(() -> client.lease("k", LockOptions.defaults().keep(Duration.ofMinutes(10))));
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE);
        lease.thread.interrupt();
        List<?> cancel = peer.expect(Codes.CANCEL);
        peer.say(0, q.get(1), Peer.FENCE, 60_000, Peer.millis() + 60_000, 1, 0, 0);
        peer.say(0, cancel.get(1), 0);
        assertEquals((long) (Codes.ASYNC | Codes.NOW), peer.expect(Codes.RELEASE).get(5));
        assertInstanceOf(InterruptedException.class, lease.thrown());
    }

    @Test
    void a_kept_lease_that_comes_after_its_future_was_cancelled_is_not_kept() {
        client.close();
        Queue<Runnable> tasks = new ConcurrentLinkedQueue<>();
        client = Sidecar.builder().socket(peer.path).executor(tasks::add).build();
        CompletableFuture<Lease> lease = client.leaseAsync(
                "k", Duration.ofMinutes(1), LockOptions.defaults().keep(Duration.ofMinutes(10)));
        peer.welcome();
        peer.grant(60_000);
        until("it is granted", () -> !tasks.isEmpty());
        lease.cancel(false);
        tasks.remove().run();
        assertEquals((long) Codes.NOW, peer.expect(Codes.RELEASE).get(5));
    }

    @Test
    void detached_holds_are_released_by_key_and_fence() {
        Background<Void> released = running(() -> client.releaseDetached("k", 7));
        peer.welcome();
        List<?> q = peer.expect(Codes.RELEASE);
        assertEquals(List.of("k", 0L, 7L, 8L), q.subList(2, 6));
        peer.say(3, q.get(1), "no such hold");
        assertInstanceOf(NotHeldException.class, released.thrown());
    }

    @Test
    void one_of_several_keys() {
        Background<Optional<Lease>> any = background(() -> client.tryLeaseAny(
                List.of("a", "b", "c"), Duration.ofSeconds(5), LockOptions.defaults().owner(owner)));
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE_ANY);
        assertEquals(List.of(List.of("a", "b", "c"), number, 0L), q.subList(2, 5));
        long wait = (Long) q.get(5); // what is left of it
        assertTrue(0 < wait && wait <= 5000, "a wait of " + wait);
        assertEquals(List.of(0L, 0L), q.subList(6, 8));
        peer.say(0, q.get(1), 7, 60_000, Peer.millis() + 60_000, 1, 0, 0, 1);
        Lease lease = any.result().orElseThrow();
        assertEquals(List.of("b"), lease.keys());
        assertEquals(7, lease.fence());
        Background<Void> closed = running(lease::close);
        assertEquals(List.of("b", number, 7L), peer.released().subList(2, 5));
        closed.result();
        any = background(() -> client.tryLeaseAny(List.of("a", "b"), Duration.ZERO, LockOptions.defaults()));
        peer.say(1, peer.expect(Codes.ACQUIRE_ANY).get(1), "held", 5);
        assertEquals(Optional.empty(), any.result());
        Until.refused(Code.INVALID, () -> client.leaseAny(List.of(), LockOptions.defaults()));
        Until.refused(Code.INVALID, () -> client.leaseAny(List.of("a", "a"), LockOptions.defaults()));
    }

    @Test
    void one_of_several_that_is_given_up_is_released() {
        Background<Lease> any = background(() -> client.leaseAny(List.of("a", "b"), LockOptions.defaults().owner(owner)));
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE_ANY);
        any.thread.interrupt();
        List<?> cancel = peer.expect(Codes.CANCEL);
        assertEquals(q.get(1), cancel.get(2));
        peer.say(0, q.get(1), 7, 60_000, Peer.millis() + 60_000, 1, 0, 0, 1);
        peer.say(0, cancel.get(1), 0);
        assertEquals(List.of("b", number, 7L), peer.expect(Codes.RELEASE).subList(2, 5));
        assertInstanceOf(InterruptedException.class, any.thrown());
        assertEquals(0, Until.inFlight(conn()));
    }

    @Test
    void the_position_of_a_key_must_be_in_range() {
        Background<Lease> any = background(() -> client.leaseAny(List.of("a", "b"), LockOptions.defaults()));
        peer.welcome();
        peer.say(0, peer.expect(Codes.ACQUIRE_ANY).get(1), 7, 60_000, Peer.millis() + 60_000, 1, 0, 0, 2);
        Until.failed(Code.BAD_FRAME, any.thrown());
    }

    @Test
    void unlocking_by_force() {
        Background<Long> ended = background(() -> client.forceUnlock("k"));
        peer.welcome();
        List<?> q = peer.expect(Codes.FORCE_UNLOCK);
        assertEquals(List.of("k", 0L, 0L), q.subList(2, 5));
        peer.say(0, q.get(1), 2);
        assertEquals(2, ended.result());
        ended = background(() -> client.forceUnlock("k"));
        peer.say(12, peer.expect(Codes.FORCE_UNLOCK).get(1), "not you");
        Until.failed(Code.DENIED, ended.thrown());
    }

    @Test
    void unlocking_permits_by_force() {
        Background<Long> ended = background(() -> client.semaphore("k", 3).forceUnlock(7));
        peer.welcome();
        List<?> q = peer.expect(Codes.FORCE_UNLOCK);
        assertEquals(List.of("k", 2L, 7L), q.subList(2, 5));
        peer.say(0, q.get(1), 1);
        assertEquals(1, ended.result());
    }

    @Test
    void what_may_have_had_its_effect_is_not_sent_again() {
        Background<Long> ended = background(() -> client.forceUnlock("k"));
        peer.welcome();
        peer.expect(Codes.FORCE_UNLOCK);
        peer.hangUp();
        Until.failed(Code.CLOSED, ended.thrown());
        Background<Void> released = running(() -> client.releaseDetached("k", 7));
        peer.welcome();
        peer.expect(Codes.RELEASE);
        peer.hangUp();
        Until.failed(Code.CLOSED, released.thrown());
    }

    @Test
    void only_a_lock_of_one_key_can_be_kept() {
        client(500);
        LockOptions kept = LockOptions.defaults().keep(Duration.ofMinutes(10));
        List<String> keys = List.of("a", "b");
        Until.refused(Code.INVALID, () -> client.leaseAll(keys, kept));
        Until.refused(Code.INVALID, () -> client.leaseAny(keys, kept));
        Until.refused(Code.INVALID, () -> client.tryLeaseAny(keys, Duration.ZERO, kept));
        Until.refused(Code.INVALID, () -> client.leaseAllAsync(keys, Duration.ZERO, kept));
    }

    @Test
    void one_of_several_keys_without_blocking() {
        CompletableFuture<Lease> any = client.leaseAnyAsync(
                List.of("a", "b"), Duration.ofSeconds(5), LockOptions.defaults().owner(owner));
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE_ANY);
        peer.say(0, q.get(1), 7, 60_000, Peer.millis() + 60_000, 1, 0, 0, 1);
        assertEquals("b", any.join().key());
        CompletableFuture<Lease> canceled = client.leaseAnyAsync(List.of("a"), Duration.ofSeconds(5), LockOptions.defaults());
        q = peer.expect(Codes.ACQUIRE_ANY);
        canceled.cancel(false);
        assertEquals(q.get(1), peer.expect(Codes.CANCEL).get(2));
    }
}
