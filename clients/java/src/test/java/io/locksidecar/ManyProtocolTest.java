package io.locksidecar;

import static io.locksidecar.Peer.FENCE;
import static io.locksidecar.Peer.millis;
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
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Acquire-many and release-many, byte for byte and reply by reply. */
class ManyProtocolTest extends OnPeer {
    private static final List<String> KEYS = List.of("b", "a");

    private Background<Lease> asked() {
        return background(() -> client.leaseAll(KEYS, LockOptions.defaults().owner(owner)));
    }

    private static List<?> grant(long fence, long left) {
        return List.of(fence, Math.max(0, left), millis() + left, 1, 0, 0);
    }

    private void granted(List<?> q, long left) {
        peer.say(0, q.get(1), List.of(grant(FENCE + 1, left), grant(FENCE, left)));
    }

    private Lease held() {
        Background<Lease> all = asked();
        peer.welcome();
        granted(peer.expect(Codes.ACQUIRE_MANY), 60_000);
        return all.result();
    }

    @Test
    void requests_on_the_wire() {
        LockOptions options = LockOptions.defaults().owner(owner).shared().ttl(Duration.ofSeconds(9)).fixed();
        Background<Void> connected = running(client::connect); // or it takes a part of the wait
        peer.welcome();
        connected.result();
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        Background<Lease> all =
                background(() -> client.tryLeaseAll(KEYS, Duration.ofMillis(1500), options).orElseThrow());
        List<?> q = peer.expect(Codes.ACQUIRE_MANY);
        assertEquals(List.of(KEYS, number, 1L, 1500L, 9000L, 1L, trace), q.subList(2, q.size()));
        granted(q, 60_000);
        assertEquals(List.of(FENCE + 1, FENCE), all.result().fences());
        Background<Void> closed = running(all.result()::close);
        q = peer.expect(Codes.RELEASE_MANY);
        assertEquals(List.of(List.of(List.of("b", FENCE + 1), List.of("a", FENCE)), number, 0L), q.subList(2, 5));
        peer.say(0, q.get(1), List.of(0, 0));
        closed.result();
        inStep();
        assertEquals(0, Until.inFlight(conn()));
    }

    @ParameterizedTest
    @CsvSource({
        "5, UPGRADE", "6, UNAVAILABLE", "8, LIMIT", "9, INVALID", "10, UNSUPPORTED", "12, DENIED", "16, OVERLONG", "99, OTHER"
    })
    void a_failure_says_which_key(int code, Code expected) {
        Background<Lease> all = asked();
        peer.welcome();
        peer.say(code, peer.expect(Codes.ACQUIRE_MANY).get(1), "why", 1);
        Throwable e = Until.failed(expected, all.thrown());
        assertTrue(e.getMessage().contains("\"a\": why"), e.getMessage());
        all = asked();
        peer.say(code, peer.expect(Codes.ACQUIRE_MANY).get(1), "as a whole");
        assertTrue(all.thrown().getMessage().contains(": as a whole"));
    }

    @Test
    void a_grant_that_crosses_the_cancel_is_released() {
        Background<Lease> all = asked();
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE_MANY);
        all.thread.interrupt();
        assertInstanceOf(InterruptedException.class, all.thrown());
        List<?> cancel = peer.expect(Codes.CANCEL);
        assertEquals(List.of(q.get(1), "b"), cancel.subList(2, 4));
        Background<Lease> again = asked(); // waits until the fate of the first is known
        inStep();
        granted(q, 60_000);
        peer.say(0, cancel.get(1), 0);
        assertEquals(List.of("b", number, FENCE + 1), peer.expect(Codes.RELEASE).subList(2, 5));
        assertEquals(List.of("a", number, FENCE), peer.expect(Codes.RELEASE).subList(2, 5));
        granted(peer.expect(Codes.ACQUIRE_MANY), 60_000);
        assertTrue(again.result().isValid());
    }

    @Test
    void codes_of_a_release() {
        Lease all = held();
        Background<Void> closed = running(all::close);
        peer.say(0, peer.expect(Codes.RELEASE_MANY).get(1), List.of(7, 3));
        LostException e = assertInstanceOf(LostException.class, closed.thrown());
        assertEquals("a", e.key());
        assertEquals("gone", e.reason());
    }

    @Test
    void a_release_that_is_not_confirmed() {
        Background<Lease> all = asked();
        peer.welcome();
        granted(peer.expect(Codes.ACQUIRE_MANY), 60_000);
        var released = all.result().releaseAsync();
        peer.say(0, peer.expect(Codes.RELEASE_MANY).get(1), List.of(0, 7));
        CompletionException e = assertThrows(CompletionException.class, released::join);
        Until.failed(Code.UNKNOWN, e.getCause());
        assertTrue(e.getCause().getMessage().contains("\"a\""), e.getCause().getMessage());
        all = asked();
        granted(peer.expect(Codes.ACQUIRE_MANY), 60_000);
        Background<Void> closed = running(all.result()::close);
        peer.say(0, peer.expect(Codes.RELEASE_MANY).get(1), List.of(7, 0));
        closed.result();
        all = asked();
        granted(peer.expect(Codes.ACQUIRE_MANY), 60_000);
        closed = running(all.result()::close);
        peer.expect(Codes.RELEASE_MANY);
        peer.hangUp();
        closed.result(); // disconnect is release, too
    }

    @Test
    void what_the_owner_holds_is_entered_once_more() {
        SidecarLock lock = lock("a");
        Background<Void> locked = running(lock::lock);
        peer.welcome();
        peer.grant(60_000);
        locked.result();
        Background<Lease> all = asked();
        peer.say(0, peer.expect(Codes.ACQUIRE_MANY).get(1), List.of(grant(FENCE + 1, 60_000), grant(FENCE, 70_000)));
        assertEquals(lock.fence(), all.result().fence("a"));
        assertTrue(lock.remaining().compareTo(Duration.ofSeconds(60)) > 0);
        Background<Void> closed = running(all.result()::close);
        List<?> q = peer.expect(Codes.RELEASE_MANY); // of the other only
        assertEquals(List.of(List.of("b", FENCE + 1)), q.get(2));
        peer.say(0, q.get(1), List.of(0));
        closed.result();
        assertTrue(lock.isHeldByOwner());
        closed = running(lock::unlock);
        assertEquals(1L, peer.expect(Codes.RELEASE).get(5), "the daemon has counted two");
        peer.released();
        closed.result();
    }

    @Test
    void a_lost_key_of_many() {
        Lease all = held();
        peer.say(64, 0, "a", number, FENCE, 4);
        until("it is lost", () -> !all.isValid());
        Background<Void> closed = running(all::close);
        assertEquals(List.of("a", number, FENCE, 2L), peer.expect(Codes.RELEASE).subList(2, 6), "nobody waits for that");
        List<?> q = peer.expect(Codes.RELEASE_MANY);
        assertEquals(List.of(List.of("b", FENCE + 1)), q.get(2), "what is left is released");
        peer.say(0, q.get(1), List.of(0));
        assertEquals("forced", assertInstanceOf(LostException.class, closed.thrown()).reason());
    }

    @Test
    void grants_that_are_over_when_they_come_are_no_grants() {
        Background<Lease> all = asked();
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE_MANY);
        peer.say(0, q.get(1), List.of(grant(FENCE + 1, 60_000), grant(FENCE, -1)));
        for (int i = 0; i < 2; i++) { // one when it is noticed, the other with all
            List<?> m = peer.read();
            assertTrue(List.of(3L, 9L).contains(m.get(0)), m::toString);
            if (m.get(0).equals(9L)) {
                assertEquals(List.of(List.of("b", FENCE + 1)), m.get(2));
                peer.say(0, m.get(1), List.of(0));
            }
        }
        granted(peer.expect(Codes.ACQUIRE_MANY), 60_000);
        assertTrue(all.result().isValid());
    }

    @Test
    void too_few_grants_end_the_connection() {
        Background<Lease> all = asked();
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE_MANY);
        Conn conn = conn();
        peer.say(0, q.get(1), List.of(grant(FENCE, 60_000)));
        Until.failed(Code.BAD_FRAME, all.thrown());
        assertFalse(conn.dead == null);
    }

    @Test
    void a_beat_is_for_all() {
        Background<Lease> asked = asked();
        peer.welcome();
        granted(peer.expect(Codes.ACQUIRE_MANY), 10_000);
        Lease all = asked.result();
        peer.say(65, 0, millis() + 60_000, 60_000);
        until("the keepalive is for all", () -> all.remaining().compareTo(Duration.ofSeconds(10)) > 0);
        assertTrue(all.isValid());
    }
}
