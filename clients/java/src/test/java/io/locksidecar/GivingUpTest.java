package io.locksidecar;

import static io.locksidecar.Peer.FENCE;
import static io.locksidecar.Peer.millis;
import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Waits that are no longer wanted, daemons that do not answer, and bytes that do not belong to the protocol. */
@Execution(ExecutionMode.CONCURRENT) // some of it takes seconds
class GivingUpTest extends OnPeer {
    private List<?> giveUp() {
        Background<Boolean> acquired = background(() -> lock("k").tryLock(100, TimeUnit.MILLISECONDS));
        peer.welcome();
        List<?> q = peer.expect(Codes.ACQUIRE);
        talkUntilEnded(acquired);
        Throwable e = acquired.thrown();
        assertInstanceOf(UnavailableException.class, e);
        assertTrue(e.getMessage().contains("has not answered") && e.getMessage().contains(peer.path.toString()));
        List<?> c = peer.expect(Codes.CANCEL);
        assertEquals(List.of(q.get(1), "k"), c.subList(2, 4));
        return List.of(q.get(1), c.get(1));
    }

    @Test
    void giving_up_cancels() {
        client(6000);
        List<?> ids = giveUp();
        peer.say(4, ids.get(0), "withdrawn");
        peer.say(0, ids.get(1), 1);
        inStep();
        assertEquals(0, Until.inFlight(conn()));
    }

    @Test
    void a_grant_that_crosses_the_cancel_is_released() {
        client(6000);
        List<?> ids = giveUp();
        peer.say(0, ids.get(0), FENCE, 60_000, millis() + 60_000, 1, 0, 0);
        peer.say(0, ids.get(1), 0);
        assertEquals(List.of("k", number, FENCE), peer.expect(Codes.RELEASE).subList(2, 5));
        assertFalse(lock("k").isHeldByOwner());
        inStep();
        assertEquals(0, Until.inFlight(conn()));
    }

    @Test
    void an_acquire_that_never_arrived_is_forgotten() {
        client(6000);
        List<?> ids = giveUp();
        peer.say(0, ids.get(1), 0);
        inStep();
        assertEquals(0, Until.inFlight(conn()));
    }

    @Test
    void the_same_owner_asks_anew_once_the_fate_of_its_withdrawn_acquire_is_known() {
        // Otherwise the new one could join a grant that is about to be released, even in another mode.
        client(6000);
        List<?> ids = giveUp();
        SidecarLock lock = lock("k");
        Background<Void> again = running(lock::lock);
        Background<Duration> other = background(client::ping);
        peer.pong(); // nothing else is sent before
        other.result();
        peer.say(0, ids.get(0), FENCE, 60_000, millis() + 60_000, 1, 0, 0);
        peer.say(0, ids.get(1), 0);
        assertEquals(FENCE, peer.expect(Codes.RELEASE).get(4));
        peer.grant(60_000, FENCE + 1, 0, 0);
        again.result();
        assertEquals(FENCE + 1, lock.fence());
    }

    @Test
    void an_interrupt_withdraws_and_a_grant_that_crosses_it_is_released() {
        Background<Void> waiting = running(lock("k")::lockInterruptibly);
        peer.welcome();
        Object id = peer.expect(Codes.ACQUIRE).get(1);
        waiting.thread.interrupt();
        assertInstanceOf(InterruptedException.class, waiting.thrown());
        Object cancel = peer.expect(Codes.CANCEL).get(1);
        peer.say(0, id, FENCE, 60_000, millis() + 60_000, 1, 0, 0);
        peer.say(0, cancel, 0);
        assertEquals(FENCE, peer.expect(Codes.RELEASE).get(4));
        inStep();
    }

    @Test
    void an_interrupt_while_it_connects() {
        Background<Void> waiting = running(lock("k")::lockInterruptibly);
        peer.accept();
        peer.expect(Codes.HELLO);
        waiting.thread.interrupt();
        assertInstanceOf(InterruptedException.class, waiting.thrown());
        peer.say(0, 1, 1, 5, millis(), 65536, 100, 30000, 86400000, 1, List.of(), "test");
        inStep();
        assertEquals(0, Until.inFlight(conn()));
    }

    @Test
    void a_wait_that_cannot_be_interrupted_keeps_the_interrupt() {
        SidecarLock lock = lock("k");
        Background<Boolean> waiting = background(() -> {
            Thread.currentThread().interrupt();
            lock.lock();
            return Thread.interrupted();
        });
        peer.welcome();
        peer.grant(60_000);
        assertTrue(waiting.result());
        Background<Boolean> released = background(() -> {
            Thread.currentThread().interrupt();
            lock.unlock();
            return Thread.interrupted();
        });
        peer.released();
        assertTrue(released.result());
    }

    @Test
    void a_reply_that_never_comes_is_not_awaited_for_ever_among_others() {
        client(6000);
        held(60_000);
        Background<Duration> pinged = background(client::ping);
        peer.expect(Codes.PING);
        talkUntilEnded(pinged);
        assertInstanceOf(UnavailableException.class, pinged.thrown());
    }

    @Test
    void a_daemon_that_does_not_answer_hello() {
        client(100);
        assertInstanceOf(UnavailableException.class, running(client::connect).thrown());
        assertInstanceOf(UnavailableException.class, running(lock("k")::tryLock).thrown());
    }

    @Test
    void a_daemon_that_speaks_no_common_version() {
        Background<Void> connected = running(client::connect);
        peer.accept();
        peer.read();
        peer.say(67, 0, 14, "versions 2 to 3");
        Throwable e = connected.thrown();
        Until.failed(Code.BAD_VERSION, e);
        assertTrue(e.getMessage().contains("versions 2 to 3") && e.getMessage().contains(peer.path.toString()));
        Background<Void> waiting = running(lock("k")::lock);
        peer.accept();
        peer.read();
        peer.say(0, 1, 2, 5, millis(), 65536, 100, 30000, 86400000, 1, List.of(), "test");
        Until.failed(Code.BAD_VERSION, waiting.thrown());
    }

    @Test
    void a_daemon_that_lets_nobody_in() {
        Background<Void> connected = running(client::connect);
        peer.accept();
        peer.read();
        peer.say(67, 0, 8, "too many connections");
        Until.failed(Code.LIMIT, connected.thrown());
    }

    @Test
    void what_is_sent_to_a_daemon_that_does_not_read_hangs_nobody() {
        Sidecar client = client(60_000);
        Background<Void> connected = running(client::connect);
        peer.welcome();
        connected.result();
        String key = "k".repeat(500);
        int count = 4000; // more than a socket takes
        long start = System.nanoTime();
        List<java.util.concurrent.CompletableFuture<Lease>> futures = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            futures.add(client.leaseAsync(key + i));
        }
        assertTrue(System.nanoTime() - start < Until.BOUND * 1_000_000_000, "no caller was kept");
        for (int i = 0; i < count; i++) {
            List<?> q = peer.expect(Codes.ACQUIRE);
            assertEquals(key + i, q.get(2));
        }
        inStep();
        peer.hangUp();
        client.close();
        for (var f : futures) {
            assertTrue(f.isCompletedExceptionally() || background(f::join).thrown() != null);
        }
    }

    @Test
    void garbage_ends_the_connection_and_hangs_nobody() {
        byte[][] all = {
            "HTTP/1.0 400 Bad Request\r\n\r\n".getBytes(),
            {0, 0, 0, 0},
            {-1, -1, -1, -1},
            {0, 0, 0, 5, (byte) 0xdd, -1, -1, -1, -1},
            {0, 0, 0, 1, (byte) 0xc1},
            together(Values.frame(65, 0, 1, 1), Values.frame("keepalive")),
            Values.frame(0),
            Values.frame(65, 0),
            {},
        };
        for (byte[] bytes : all) {
            SidecarLock lock = held(60_000);
            Conn conn = conn();
            List<Background<?>> waiting = List.of(
                    background(client::ping), background(() -> client.lease("other")), background(lock::isLocked));
            for (int i = 0; i < waiting.size(); i++) {
                peer.read();
            }
            if (bytes.length > 0) {
                peer.raw(bytes);
            }
            until("", () -> bytes.length == 0 || conn.dead != null);
            client.close(); // so that nobody connects anew
            peer.hangUp();
            for (Background<?> b : waiting) {
                assertInstanceOf(LockException.class, b.thrown());
            }
            assertFalse(lock.isHeldByOwner());
            client(2000);
        }
    }

    @Test
    void the_io_thread_does_not_mind_an_interrupt() {
        SidecarLock lock = held(60_000);
        Conn conn = conn();
        for (Thread t : Thread.getAllStackTraces().keySet()) {
            if (t.getName().equals("locksidecar-io")) {
                t.interrupt();
            }
        }
        inStep();
        assertTrue(lock.isHeldByOwner());
        assertEquals(conn, conn());
        assertNull(conn.dead);
    }
}
