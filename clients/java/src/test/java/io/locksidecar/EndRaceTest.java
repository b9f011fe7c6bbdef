package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Calls between the end of a connection or a hold, and the moment when the whole client knows it. */
class EndRaceTest extends OnPeer {
    /** Runs a task after a connection has ended but before its holds are given up. Returns when the task has ended. */
    private <T> Background<T> whileEnding(java.util.concurrent.Callable<T> task) {
        Conn conn = conn();
        conn.mu.lock();
        try {
            conn.dead = new UnavailableException(Code.CLOSED, "the connection has ended"); // as die begins
            Background<T> between = background(task);
            until("it waits for the rest, or has ended", () -> between.isDone() || conn.mu.hasQueuedThread(between.thread));
            conn.dead = null;
            conn.die(new UnavailableException(Code.CLOSED, "the connection has ended"), "connection");
            return between;
        } finally {
            conn.mu.unlock();
        }
    }

    @Test
    void an_unlock_at_the_end_of_the_connection_is_of_a_lost_lock() {
        SidecarLock lock = held(60_000);
        Background<?> unlocked = whileEnding(() -> {
            lock.unlock();
            return null;
        });
        assertEquals("connection", assertInstanceOf(LostException.class, unlocked.thrown()).reason());
        assertEquals(0, lock.holdCount());
        Background<Void> again = running(lock::lock); // the owner can acquire the key again
        peer.welcome();
        peer.grant(60_000);
        again.result();
    }

    @Test
    void what_is_lost_with_the_connection_is_counted_and_has_its_fence() {
        SidecarLock lock = held(60_000);
        assertEquals(1, whileEnding(lock::holdCount).result());
        assertEquals(Peer.FENCE, lock.fence());
        assertThrows(LostException.class, lock::unlock);
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void an_extension_that_is_answered_after_the_loss_is_of_a_lost_lock() {
        SidecarLock lock = held(60_000);
        Background<Void> extended = running(() -> lock.extend(java.time.Duration.ofMinutes(1)));
        Object id = peer.expect(Codes.RENEW).get(1);
        peer.say(64, 0, "k", number, Peer.FENCE, 2);
        peer.say(0, id, Peer.FENCE, 60_000, Peer.millis() + 60_000, 1, 0, 0);
        assertEquals("gone", assertInstanceOf(LostException.class, extended.thrown()).reason());
    }

    @Test
    void an_acquire_that_is_answered_not_held_has_lost_nothing() {
        SidecarLock lock = lock("k");
        Background<Void> locked = running(lock::lock);
        peer.welcome();
        peer.say(3, peer.expect(Codes.ACQUIRE).get(1), "why");
        assertInstanceOf(NotHeldException.class, locked.thrown());
        Background<Void> again = running(lock::lock);
        peer.grant(60_000);
        again.result();
    }

    @Test
    void a_lease_that_was_lost_before_its_downgrade_can_be_closed() {
        LockOptions mine = LockOptions.defaults().owner(owner);
        Background<Lease> leased = background(() -> client.lease("k", mine));
        peer.welcome();
        peer.grant(60_000);
        Lease lease = leased.result();
        peer.say(64, 0, "k", number, Peer.FENCE, 2);
        until("it is lost", () -> !lease.isValid());
        assertThrows(LostException.class, lease::downgrade);
        assertThrows(LostException.class, lease::downgrade);
        assertEquals("gone", assertThrows(LostException.class, lease::close).reason());
        Background<Lease> again = background(() -> client.lease("k", mine));
        peer.grant(60_000, Peer.FENCE + 1, 0, 0);
        again.result();
    }

    @Test
    void what_waits_for_the_reading_is_done_when_an_error_of_writing_ends_the_connection() throws Exception {
        held(60_000);
        Conn conn = conn();
        peer.readNoMore();
        running(client::ping); // it cannot be written
        AtomicInteger asked = new AtomicInteger();
        AtomicInteger done = new AtomicInteger();
        while (conn.dead == null) {
            asked.incrementAndGet();
            conn.whenCaughtUp(done::incrementAndGet);
        }
        until("all is done", () -> done.get() == asked.get());
    }
}
