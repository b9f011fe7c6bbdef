package io.locksidecar;

import static io.locksidecar.Peer.FENCE;
import static io.locksidecar.Peer.millis;
import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Permits request by request and reply by reply. Each is a hold of its own, even with the same owner. */
class SemaphoreProtocolTest extends OnPeer {
    private SidecarSemaphore semaphore() {
        return client.semaphore("k", 5, LockOptions.defaults().owner(owner));
    }

    private void connected() {
        Background<Void> connected = running(client::connect);
        peer.welcome();
        connected.result();
    }

    /** Returns a permit that is valid for so many milliseconds, on an open connection. */
    private Lease permit(long left, long fence) {
        Background<Lease> permit = background(semaphore()::acquire);
        peer.grant(left, fence, 0, 0);
        return permit.result();
    }

    /** Checks that nothing is left of any withdrawn request. */
    private void nothingIsInFlight() {
        inStep();
        assertEquals(0, Until.inFlight(conn()));
        assertTrue(conn().withdrawn.isEmpty());
    }

    @Test
    void requests_on_the_wire() {
        LockOptions options = LockOptions.defaults().owner(owner).ttl(Duration.ofSeconds(9)).fixed();
        connected(); // or it takes a part of the wait
        Background<Lease> permit =
                background(() -> client.semaphore("k", 10_000, options).acquire(Duration.ofMillis(1500)));
        List<?> q = peer.grant(60_000, FENCE, millis() + 50_000, 0);
        assertEquals(List.of("k", number, 2L, 1500L, 9000L, 1L, 10_000L), q.subList(2, q.size()));
        Background<Void> extended = running(permit.result()::extend);
        q = peer.expect(Codes.RENEW);
        assertEquals(List.of("k", number, FENCE, 0L), q.subList(2, q.size()));
        peer.say(0, q.get(1), FENCE, 70_000, millis() + 70_000, 1, millis() + 60_000, 0);
        extended.result();
        assertTrue(permit.result().remaining().compareTo(Duration.ofSeconds(50)) > 0);
        Until.refused(Code.INVALID, permit.result()::downgrade);
        Background<Boolean> held = background(semaphore()::isHeldByAnybody);
        q = peer.expect(Codes.INSPECT);
        assertEquals(List.of("k", 2L), q.subList(2, q.size()));
        peer.say(0, q.get(1), 2, 2, 0, 0, 1000, 0);
        assertTrue(held.result());
        Background<Void> closed = running(permit.result()::close);
        q = peer.released();
        assertEquals(List.of("k", number, FENCE, 0L), q.subList(2, q.size()));
        closed.result();
        Background<Boolean> locked = background(() -> lock("k").tryLock());
        q = peer.grant(60_000);
        assertEquals(List.of("k", number, 0L, 0L, 0L, 0L), q.subList(2, q.size()), "of a lock there are none");
        assertTrue(locked.result());
        nothingIsInFlight();
    }

    @Test
    void one_of_several_is_lost_and_the_lock_of_the_key_another_time() {
        SidecarLock lock = held(60_000);
        List<LostException> heard = new CopyOnWriteArrayList<>();
        List<Lease> permits = new ArrayList<>();
        for (int i = 1; i <= 3; i++) {
            Lease permit = permit(60_000, FENCE + i);
            permit.onLost().thenAccept(heard::add);
            permits.add(permit);
        }
        assertEquals(FENCE, lock.fence());
        peer.say(64, 0, "k", number, FENCE + 9, 2); // of none that is known
        peer.say(64, 0, "k", number + 1_000_000, FENCE + 3, 2);
        peer.say(64, 0, "k", number, FENCE + 2, 4);
        until("it is told", () -> !heard.isEmpty());
        assertEquals(List.of(true, false, true), permits.stream().map(Lease::isValid).toList());
        assertTrue(lock.isHeldByOwner());
        peer.say(64, 0, "k", number, FENCE, 2);
        until("the lock is lost", () -> !lock.isHeldByOwner());
        assertEquals(List.of(true, false, true), permits.stream().map(Lease::isValid).toList());
        LostException e = assertThrows(LostException.class, permits.get(1)::close);
        assertEquals("permit of \"k\" was lost: forced", e.getMessage());
        assertEquals(FENCE + 2, e.fence());
        e = assertThrows(LostException.class, lock::unlock);
        assertEquals("lock \"k\" was lost: gone", e.getMessage());
        assertEquals(List.of("k", number, FENCE + 2, 2L), peer.expect(Codes.RELEASE).subList(2, 6), "of the forced one");
        for (int i : List.of(2, 0)) { // nothing was sent for the other lost hold
            Background<Void> closed = running(permits.get(i)::close);
            assertEquals(FENCE + 1 + i, peer.released().get(4));
            closed.result();
        }
        assertEquals(1, heard.size());
    }

    @Test
    void a_beat_is_for_all_and_each_ends_by_itself_without() {
        connected();
        Lease two = permit(60_000, FENCE);
        Lease one = permit(1000, FENCE + 1);
        until("the first is over", () -> !one.isValid());
        assertTrue(two.isValid());
        List<?> q = peer.expect(Codes.RELEASE); // the daemon may believe that it is held
        assertEquals(FENCE + 1, q.get(4));
        assertEquals("silence", assertThrows(LostException.class, one::close).reason());
        peer.say(65, 0, millis() + 90_000, 90_000);
        until("the keepalive is for the other", () -> two.remaining().compareTo(Duration.ofSeconds(60)) > 0);
        assertFalse(one.isValid());
    }

    @Test
    void a_grant_that_crosses_the_cancel_is_released_and_the_others_stay() {
        connected();
        Lease first = permit(60_000, FENCE);
        Background<Lease> waiting = background(semaphore()::acquire);
        Object id = peer.expect(Codes.ACQUIRE).get(1);
        waiting.thread.interrupt();
        assertInstanceOf(InterruptedException.class, waiting.thrown());
        List<?> cancel = peer.expect(Codes.CANCEL);
        assertEquals(List.of(id, "k"), cancel.subList(2, 4));
        Lease third = permit(60_000, FENCE + 2); // need not wait for the other's fate
        Background<Void> locked = running(lock("k")::lock); // nor the lock
        peer.grant(60_000, FENCE + 3, 0, 0);
        locked.result();
        peer.say(0, id, FENCE + 1, 60_000, millis() + 60_000, 1, 0, 0);
        peer.say(0, cancel.get(1), 0);
        assertEquals(List.of("k", number, FENCE + 1), peer.expect(Codes.RELEASE).subList(2, 5));
        assertTrue(first.isValid() && third.isValid() && lock("k").isHeldByOwner());
        nothingIsInFlight();
    }

    @Test
    void a_lock_that_is_withdrawn_meanwhile_is_waited_for_by_locks_alone() {
        connected();
        Background<Void> waiting = running(lock("k")::lockInterruptibly);
        Object id = peer.expect(Codes.ACQUIRE).get(1);
        waiting.thread.interrupt();
        assertInstanceOf(InterruptedException.class, waiting.thrown());
        Object cancel = peer.expect(Codes.CANCEL).get(1);
        Background<Lease> permit = background(semaphore()::acquire);
        Object asked = peer.expect(Codes.ACQUIRE).get(1);
        permit.thread.interrupt();
        assertInstanceOf(InterruptedException.class, permit.thrown());
        Object second = peer.expect(Codes.CANCEL).get(1);
        peer.say(4, asked, "withdrawn");
        peer.say(0, second, 1);
        Background<Void> again = running(lock("k")::lock);
        inStep(); // it has not asked: it must not join what is about to be given back
        peer.say(0, id, FENCE, 60_000, millis() + 60_000, 1, 0, 0);
        peer.say(0, cancel, 0);
        assertEquals(FENCE, peer.expect(Codes.RELEASE).get(4));
        peer.grant(60_000, FENCE + 1, 0, 0);
        again.result();
        nothingIsInFlight();
    }

    @Test
    void a_grant_that_is_over_when_it_comes_is_no_grant() {
        connected();
        Background<Lease> permit = background(semaphore()::acquire);
        peer.grant(0);
        assertEquals(FENCE, peer.expect(Codes.RELEASE).get(4));
        peer.grant(60_000, FENCE + 1, 0, 0);
        assertEquals(FENCE + 1, permit.result().fence());
    }

    @ParameterizedTest
    @ValueSource(longs = {0, FENCE})
    void a_permit_without_a_fence_of_its_own_ends_the_connection(long fence) {
        connected();
        Lease first = permit(60_000, FENCE);
        Conn conn = conn();
        Background<Lease> second = background(semaphore()::acquire);
        peer.grant(60_000, fence, 0, 0);
        Until.failed(Code.BAD_FRAME, second.thrown());
        assertNotNull(conn.dead);
        assertEquals("connection", assertThrows(LostException.class, first::close).reason());
    }

    @ParameterizedTest
    @CsvSource({
        "4, CANCELED", "6, UNAVAILABLE", "8, LIMIT", "9, INVALID", "10, UNSUPPORTED", "12, DENIED", "99, OTHER"
    })
    void what_is_refused(int code, Code expected) {
        connected();
        Background<Lease> asked = background(semaphore()::acquire);
        peer.say(code, peer.expect(Codes.ACQUIRE).get(1), "why");
        Throwable e = Until.failed(expected, asked.thrown());
        assertTrue(e.getMessage().contains("why"), e.getMessage());
    }

    @Test
    void none_to_be_had() {
        connected();
        Background<Boolean> tried = background(() -> semaphore().tryAcquire().isEmpty());
        List<?> q = peer.expect(Codes.ACQUIRE);
        assertEquals(0L, q.get(5));
        peer.say(1, q.get(1), "held", 100);
        assertTrue(tried.result());
        Background<Lease> waited = background(() -> semaphore().acquire(Duration.ofSeconds(1)));
        peer.say(2, peer.expect(Codes.ACQUIRE).get(1), "the wait is over");
        Throwable e = waited.thrown();
        assertInstanceOf(NotAcquiredException.class, e);
        assertTrue(e.getMessage().startsWith("semaphore \"k\": "), e.getMessage());
        Background<Lease> forEver = background(semaphore()::acquireUninterruptibly);
        q = peer.expect(Codes.ACQUIRE);
        assertEquals(-1L, q.get(5));
        peer.say(2, q.get(1), "the longest wait is over");
        assertInstanceOf(NotAcquiredException.class, forEver.thrown());
    }

    @Test
    void a_release_that_the_daemon_does_not_know_of_is_a_loss_of_that_one() {
        connected();
        Lease one = permit(60_000, FENCE);
        Lease two = permit(60_000, FENCE + 1);
        Background<Void> closed = running(one::close);
        peer.say(3, peer.expect(Codes.RELEASE).get(1), "why");
        assertEquals("permit of \"k\" was lost: gone", closed.thrown().getMessage());
        Background<Void> extended = running(two::extend);
        peer.say(3, peer.expect(Codes.RENEW).get(1), "why");
        assertInstanceOf(LostException.class, extended.thrown());
        assertFalse(two.isValid());
    }

    @Test
    void a_wait_asks_anew_on_the_next_connection() {
        connected();
        Lease first = permit(60_000, FENCE);
        Background<Lease> waiting = background(semaphore()::acquire);
        peer.expect(Codes.ACQUIRE);
        peer.hangUp();
        until("it is noticed", () -> !first.isValid());
        peer.welcome();
        List<?> q = peer.grant(60_000, FENCE + 5, 0, 0);
        assertEquals(List.of("k", number, 2L, -1L, 0L, 0L, 5L), q.subList(2, q.size()));
        assertTrue(waiting.result().isValid());
        assertFalse(first.isValid());
        assertThrows(LostException.class, first::close);
    }
}
