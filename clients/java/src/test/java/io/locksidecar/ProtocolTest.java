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
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The requirements of PROTOCOL.md for a client, in the order of what can happen to a hold. */
class ProtocolTest extends OnPeer {
    @Test
    void requests_on_the_wire() {
        LockOptions options = LockOptions.defaults().ttl(Duration.ofMillis(1500)).fixed().shared().owner(owner);
        client = Sidecar.builder().socket(peer.path).name("me").label("l").build();
        SidecarLock lock = client.lock("k", options);
        Background<Boolean> acquired = background(() -> lock.tryLock(250, TimeUnit.MILLISECONDS));
        peer.accept();
        assertEquals(List.of(1L, 1L, 1L, 1L, "me", "l"), peer.read());
        peer.say(0, 1, 1, 5, millis(), 65536, 100, 30000, 86400000, 1, List.of(), "test");
        List<?> first = peer.read();
        assertEquals(List.of(2L, 2L, "k", number, 1L), first.subList(0, 5));
        assertEquals(List.of(1500L, 1L), first.subList(6, 8));
        long wait = (Long) first.get(5); // less what it took to connect
        assertTrue(wait >= 0 && wait <= 250, () -> "wait " + wait);
        peer.say(0, 2, FENCE, 1000, millis() + 60_000, 1, millis() + 60_000, 0);
        assertTrue(acquired.result());
        Background<Void> extended = running(() -> lock.extend(Duration.ofSeconds(2)));
        assertEquals(List.of(4L, 3L, "k", number, FENCE, 2000L), peer.read());
        peer.say(0, 3, FENCE, 1000, millis() + 60_000, 1, millis() + 60_000, 0);
        extended.result();
        Background<Boolean> asked = background(lock::isLocked);
        assertEquals(List.of(7L, 4L, "k"), peer.read());
        peer.say(0, 4, 1, 0, 1, 0, -1, FENCE);
        assertTrue(asked.result());
        Background<Void> released = running(lock::unlock);
        assertEquals(List.of(3L, 5L, "k", number, FENCE, 0L), peer.read());
        peer.say(0, 5, 0);
        released.result();
        Background<Lease> lease = background(() -> client.lease("l"));
        List<?> q = peer.grant(60_000);
        Background<Void> lowered = running(lease.result()::downgrade);
        assertEquals(List.of(5L, 7L, "l", q.get(3), FENCE), peer.read());
        peer.say(0, 7, FENCE, 1000, millis() + 60_000, 1, 0, 0);
        lowered.result();
        Background<Duration> pinged = background(client::ping);
        assertEquals(List.of(10L, 8L), peer.read());
        peer.say(0, 8, millis());
        pinged.result();
    }

    /** It is shared from the request on, because the daemon admits readers before its answer comes. */
    @Test
    void a_refused_downgrade_leaves_it_exclusive() {
        Background<Lease> granted = background(() -> client.lease("k"));
        peer.welcome(0);
        List<?> q = peer.grant(60_000);
        Lease lease = granted.result();
        Hold hold = conn().holds.table.get(Hold.Id.lock("k", (Long) q.get(3)));
        Background<Void> lowered = running(lease::downgrade);
        peer.say(6, peer.expect(Codes.DOWNGRADE).get(1), "no");
        assertThrows(UnavailableException.class, lowered::result);
        assertFalse(hold.shared);
        Background<Void> again = running(lease::downgrade);
        peer.say(0, peer.expect(Codes.DOWNGRADE).get(1), FENCE, 1000, millis() + 60_000, 1, 0, 0);
        again.result();
        assertTrue(hold.shared);
        lease.downgrade(); // nothing is left to do
    }

    @Test
    void frames_come_in_pieces_and_together() {
        SidecarLock lock = held(60_000);
        Background<Duration> pinged = background(client::ping);
        Object id = peer.expect(Codes.PING).get(1);
        for (byte b : together(Values.frame(65, 0, millis() + 90_000, 90_000), Values.frame(0, id, 1))) {
            peer.raw(new byte[] {b});
        }
        pinged.result();
        assertTrue(lock.remaining().toSeconds() > 80);
        peer.raw(together(
                Values.frame(65, 0, millis() + 120_000, 1),
                Values.frame(99, 0, List.of("later")),
                Values.frame(64, 0, "k", number, FENCE, 1)));
        until("the loss is read", () -> !lock.isHeldByOwner());
    }

    @Test
    void the_frame_limit_is_the_daemons() {
        Background<Duration> pinged = background(client::ping);
        peer.accept();
        peer.read();
        peer.say(0, 1, 1, 5, millis(), 1 << 20, 100, 30000, 86400000, 1, List.of(), "test");
        Object id = peer.expect(Codes.PING).get(1);
        peer.raw(together(Values.frame(99, 0, "x".repeat(100_000)), Values.frame(0, id, 1)));
        pinged.result();
    }

    @Test
    void a_grant_in_a_malformed_message_is_never_seen() {
        SidecarLock lock = lock("k");
        Background<Void> acquired = running(lock::lock);
        peer.welcome();
        Object id = peer.expect(Codes.ACQUIRE).get(1);
        byte[] grant = Values.frame(0, id, FENCE, 60_000, millis() + 60_000, 1, 0, 0);
        byte[] longer = Arrays.copyOf(grant, grant.length + 1);
        ByteBuffer payload = ByteBuffer.wrap(longer, 4, longer.length - 4).slice();
        Conn conn = conn();
        conn.mu.lock();
        try (conn.mu) {
            Until.refused(Code.BAD_FRAME, () -> conn.incoming.apply(payload)); // the I/O thread would end the connection next
        }
        assertFalse(lock.isHeldByOwner());
        peer.raw(grant);
        acquired.result();
        assertTrue(lock.isHeldByOwner());
    }

    @Test
    void a_beat_extends_what_was_granted_before_it() {
        SidecarLock first = held(20_000);
        peer.say(65, 0, millis() + 50_000, 50_000);
        SidecarLock second = lock("other");
        Background<Void> acquired = running(second::lock);
        peer.grant(20_000, FENCE + 1, 0, 0);
        acquired.result();
        assertTrue(first.remaining().toSeconds() > 40);
        assertTrue(second.remaining().toSeconds() <= 20);
        peer.say(65, 0, millis() + 1_000, 1_000); // it never shortens anything
        peer.say(65, 0, millis() + 90_000, 90_000);
        until("both are extended", () -> second.remaining().toSeconds() > 80);
        assertTrue(first.remaining().toSeconds() > 80);
    }

    @Test
    void a_beat_does_not_extend_a_fixed_hold_beyond_its_end() {
        SidecarLock lock = held(5_000, millis() + 30_000, 0);
        peer.say(65, 0, millis() + 90_000, 90_000);
        until("it is extended", () -> lock.remaining().toSeconds() > 10);
        assertTrue(lock.remaining().toSeconds() <= 30);
    }

    @Test
    void silence_is_not_validity() {
        List<LostException> losses = new CopyOnWriteArrayList<>();
        SidecarLock lock = client.lock("k", LockOptions.defaults().owner(owner).onLost(losses::add));
        Background<Void> acquired = running(lock::lock);
        peer.welcome();
        peer.grant(300);
        acquired.result();
        until("it has lapsed", () -> !lock.isHeldByOwner());
        until("the listener is told", () -> !losses.isEmpty());
        assertEquals("silence", losses.get(0).reason());
        List<?> q = peer.expect(Codes.RELEASE); // otherwise the daemon would continue to renew it
        assertEquals(List.of("k", number, FENCE), q.subList(2, 5));
        peer.say(65, 0, millis() + 60_000, 60_000);
        inStep();
        assertFalse(lock.isHeldByOwner(), "it stays lost, since it was said so");
        assertThrows(LostException.class, lock::unlock);
    }

    @ParameterizedTest
    @CsvSource({"1,expired", "2,gone", "3,fixed_end", "4,forced", "5,session", "6,shutdown", "7,too_long", "8,silent",
        "99,reason 99"})
    void a_loss_is_told_of_once(int reason, String name) {
        List<LostException> losses = new CopyOnWriteArrayList<>();
        List<LostException> told = new CopyOnWriteArrayList<>();
        LockOptions options = LockOptions.defaults().owner(owner);
        SidecarLock lock = client.lock("k", options.onLost(losses::add));
        Background<Void> acquired = running(lock::lock);
        peer.welcome();
        peer.grant(60_000);
        acquired.result();
        client.lock("k", options.onLost(told::add)).lock();
        SidecarLock last = client.lock("last", options.onLost(losses::add));
        acquired = running(last::lock);
        peer.grant(60_000);
        acquired.result();
        peer.say(64, 0, "k", number, FENCE, reason);
        peer.say(64, 0, "k", number, FENCE, reason);
        until("it is told of", () -> !losses.isEmpty() && !told.isEmpty());
        peer.say(67, 0, 11, "the daemon is stopping");
        until("the last is told of", () -> losses.size() > 1);
        assertEquals(List.of(name, "connection"), losses.stream().map(LostException::reason).toList());
        assertEquals(List.of(name), told.stream().map(LostException::reason).toList());
        LostException e = assertThrows(LostException.class, lock::unlock);
        assertTrue(e.getMessage().contains(name));
        assertThrows(LostException.class, lock::unlock, "it was acquired twice");
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void a_forced_unlock_is_acknowledged_by_the_last_release() {
        SidecarLock lock = held(60_000);
        lock.lock();
        peer.say(64, 0, "k", number, FENCE, 4);
        until("it is lost", () -> !lock.isHeldByOwner());
        assertEquals("forced", assertThrows(LostException.class, lock::unlock).reason());
        inStep(); // the outer scope still works
        assertEquals("forced", assertThrows(LostException.class, lock::unlock).reason());
        assertEquals(List.of("k", number, FENCE, 2L), peer.expect(Codes.RELEASE).subList(2, 6));
        inStep(); // nobody waits for the answer
        assertEquals(0, Until.inFlight(conn()));
    }

    @Test
    void no_other_loss_is_acknowledged() {
        SidecarLock lock = held(60_000);
        peer.say(64, 0, "k", number, FENCE, 1);
        until("it is lost", () -> !lock.isHeldByOwner());
        assertThrows(LostException.class, lock::unlock);
        inStep();
    }

    @Test
    void a_grant_that_crosses_the_loss_of_another_hold_of_its_owner_is_given_back() {
        SidecarLock lock = held(60_000);
        Background<Lease> all = background(
                () -> client.leaseAll(List.of("k", "other"), LockOptions.defaults().owner(owner)));
        Object id = peer.expect(Codes.ACQUIRE_MANY).get(1);
        peer.raw(together(
                Values.frame(64, 0, "k", number, FENCE, 2),
                Values.frame(0, id, List.of(
                        List.of(FENCE + 1, 60_000, millis() + 60_000, 1, 0, 0),
                        List.of(FENCE + 2, 60_000, millis() + 60_000, 1, 0, 0)))));
        LostException e = assertInstanceOf(LostException.class, all.thrown());
        assertEquals(List.of("gone", FENCE), List.of(e.reason(), e.fence()));
        assertEquals(List.of("k", number, FENCE + 1), peer.expect(Codes.RELEASE).subList(2, 5));
        assertEquals(List.of("other", number, FENCE + 2), peer.expect(Codes.RELEASE).subList(2, 5));
        assertFalse(lock.isHeldByOwner());
        assertEquals(FENCE, assertThrows(LostException.class, lock::unlock).fence());
        Background<Void> again = running(lock::lock);
        peer.grant(60_000, FENCE + 3, 0, 0);
        again.result();
        assertTrue(lock.isHeldByOwner());
    }

    @Test
    void a_grant_that_crosses_the_loss_of_another_handle_of_its_thread_is_given_back() {
        LockOptions shared = LockOptions.defaults().shared();
        Background<Lease> first = new Background<>(() -> {
            Lease lease = client.lease("k", shared);
            LostException e = assertThrows(LostException.class, () -> client.tryLease("k", shared));
            assertEquals(List.of("gone", FENCE), List.of(e.reason(), e.fence()));
            return lease;
        });
        peer.welcome();
        Object owner = peer.grant(60_000).get(3);
        List<?> q = peer.expect(Codes.ACQUIRE);
        peer.raw(together(
                Values.frame(64, 0, "k", owner, FENCE, 2),
                Values.frame(0, q.get(1), FENCE + 1, 60_000, millis() + 60_000, 1, 0, 0)));
        assertEquals(List.of("k", q.get(3), FENCE + 1), peer.expect(Codes.RELEASE).subList(2, 5));
        assertEquals(FENCE, assertThrows(LostException.class, first.result()::close).fence());
    }

    @Test
    void a_try_waits_until_it_is_known_whether_its_thread_has_lost_the_key() {
        LockOptions shared = LockOptions.defaults().shared();
        CompletableFuture<Void> reads = new CompletableFuture<>();
        AtomicBoolean trying = new AtomicBoolean();
        Background<Lease> thread = background(() -> {
            Lease lease = client.lease("k", shared);
            client.lease("k", shared); // closed with the client
            conn().whenCaughtUp(reads::join); // the client reads nothing until then, even if a thread interrupts it
            until("it has ended", () -> !lease.isValid());
            trying.set(true);
            assertEquals("silence", assertThrows(LostException.class, () -> client.tryLease("k", shared)).reason());
            return lease;
        });
        peer.welcome();
        peer.grant(2000);
        peer.grant(60_000, FENCE + 1, 0, 0);
        until("it waits", () -> thread.isDone() || trying.get() && thread.thread.getState().name().endsWith("WAITING"));
        reads.complete(null);
        assertEquals(FENCE, peer.released().get(4)); // nothing else is sent before
        assertThrows(LostException.class, thread.result()::close);
    }

    /** Keeps the client from reading until the result is complete. */
    private CompletableFuture<Void> deaf() throws InterruptedException {
        CountDownLatch waits = new CountDownLatch(1);
        CompletableFuture<Void> reads = new CompletableFuture<>();
        conn().whenCaughtUp(() -> {
            waits.countDown();
            reads.join(); // other tests may interrupt the thread
        });
        assertTrue(waits.await(Until.BOUND, TimeUnit.SECONDS));
        return reads;
    }

    @ParameterizedTest
    @ValueSource(strings = {"held", "remaining", "end", "extend", "unlock"})
    void what_has_run_out_when_it_is_asked_for_stays_lost(String ask) throws InterruptedException {
        SidecarLock lock = held(1000, millis() + 60_000, 0);
        CompletableFuture<Void> reads = deaf();
        long granted = millis();
        until("its time has passed", () -> millis() > granted + 1000);
        peer.say(65, 0, millis() + 60_000, 60_000);
        switch (ask) {
            case "held" -> assertFalse(lock.isHeldByOwner());
            case "remaining" -> assertEquals(Duration.ZERO, lock.remaining());
            case "end" -> assertEquals(Duration.ZERO, lock.fixedEnd().orElseThrow());
            case "extend" -> assertThrows(LostException.class, () -> lock.extend(Duration.ofSeconds(60)));
            default -> assertThrows(LostException.class, lock::unlock);
        }
        reads.complete(null);
        List<?> q = peer.read();
        assertEquals(List.of((long) Codes.RELEASE, "k", number, FENCE), List.of(q.get(0), q.get(2), q.get(3), q.get(4)));
        inStep();
        assertFalse(lock.isHeldByOwner());
        if (!ask.equals("unlock")) {
            assertEquals("silence", assertThrows(LostException.class, lock::unlock).reason());
        }
        Background<Void> again = running(lock::lock);
        peer.grant(60_000, FENCE + 1, 0, 0);
        again.result();
        assertTrue(lock.isHeldByOwner());
    }

    @Test
    void a_grant_in_a_message_that_ends_the_connection_is_no_loss() {
        Background<Lease> all = background(() -> client.leaseAll(List.of("j", "k")));
        peer.welcome();
        Object id = peer.expect(Codes.ACQUIRE_MANY).get(1);
        peer.say(0, id, List.of(List.of(FENCE, 60_000, millis() + 60_000, 1, 0, 0), List.of(FENCE + 1)));
        Until.failed(Code.BAD_FRAME, all.thrown());
        assertEquals(0, client.link.losses.size);
    }

    @Test
    void a_loss_before_the_acquire_has_returned_is_not_told_of() {
        List<LostException> losses = new CopyOnWriteArrayList<>();
        SidecarLock lock = client.lock("k", LockOptions.defaults().owner(owner).onLost(losses::add));
        Background<Void> acquired = running(lock::lock);
        peer.welcome();
        Object id = peer.expect(Codes.ACQUIRE).get(1);
        peer.raw(together(
                Values.frame(0, id, FENCE, 60_000, millis() + 60_000, 1, 0, 0),
                Values.frame(64, 0, "k", number, FENCE, 2)));
        peer.grant(60_000, FENCE + 1, 0, 0);
        acquired.result();
        peer.say(64, 0, "k", number, FENCE + 1, 4);
        until("the listener is told", () -> !losses.isEmpty());
        assertEquals(FENCE + 1, losses.get(0).fence());
        assertEquals(1, losses.size());
    }

    @Test
    void a_loss_of_another_fence_or_owner_is_ignored() {
        SidecarLock lock = held(60_000);
        peer.say(64, 0, "k", number, FENCE - 1, 1);
        peer.say(64, 0, "k", number + 1, FENCE, 1);
        peer.say(64, 0, "unknown", number, FENCE, 1);
        inStep();
        assertTrue(lock.isHeldByOwner());
    }

    @Test
    void a_hold_that_the_daemon_does_not_know_is_lost() {
        SidecarLock lock = held(60_000);
        Background<Void> extended = running(() -> lock.extend(Duration.ofSeconds(1)));
        peer.say(3, peer.expect(Codes.RENEW).get(1), "why");
        assertInstanceOf(LostException.class, extended.thrown());
        assertFalse(lock.isHeldByOwner());
    }

    @Test
    void a_grant_that_is_over_when_it_comes_is_no_grant() {
        SidecarLock lock = lock("k");
        Background<Void> acquired = running(lock::lock);
        peer.welcome();
        peer.grant(0);
        assertEquals(FENCE, peer.expect(Codes.RELEASE).get(4));
        peer.grant(60_000, FENCE + 1, 0, 0);
        acquired.result();
        assertEquals(FENCE + 1, lock.fence());
    }

    @Test
    void a_statement_that_has_arrived_counts_though_nobody_has_read_it() {
        // The whole process was stopped for longer than the TTL.
        SidecarLock lock = held(200);
        Conn conn = conn();
        conn.mu.lock(); // the I/O thread cannot apply what it reads
        try {
            peer.say(65, 0, millis() + 60_000, 60_000);
            Hold hold = conn.find(Hold.Id.lock("k", number));
            until("the grant's own validity is over", () -> !hold.owned());
        } finally {
            conn.mu.unlock();
        }
        Background<Void> released = running(lock::unlock);
        peer.released();
        released.result();
    }

    @ParameterizedTest
    @ValueSource(longs = {1_000_000, -1_000_000, 1L << 40})
    void a_daemon_with_another_clock(long ahead) {
        SidecarLock lock = held(20_000, 0, ahead + 2_000_000);
        assertTrue(lock.remaining().toSeconds() >= 15, lock.remaining()::toString);
        assertTrue(lock.remaining().toMillis() <= 20_000, lock.remaining()::toString);
    }

    @Test
    void each_keepalive_is_answered_whatever_the_welcome_said() {
        held(60_000);
        for (int i = 0; i < 3; i++) {
            peer.say(65, 0, millis() + 60_000, 60_000);
            peer.pong();
        }
    }

    @Test
    void acquires_are_asked_again_while_the_daemon_goes_away() {
        SidecarLock lock = lock("k");
        Background<Boolean> acquired = background(() -> lock.tryLock(60, TimeUnit.SECONDS));
        peer.welcome();
        peer.say(66, 0, 30_000, "the daemon is stopping");
        peer.say(11, peer.expect(Codes.ACQUIRE).get(1), "going away");
        peer.say(11, peer.expect(Codes.ACQUIRE).get(1), "going away");
        peer.say(67, 0, 11, "the daemon is stopping");
        peer.welcome();
        peer.grant(60_000);
        assertTrue(acquired.result());
    }

    @Test
    void a_daemon_that_goes_away_for_too_long() {
        client = Sidecar.builder().socket(peer.path).patience(Duration.ofMillis(100)).build();
        Background<Void> acquired = running(lock("k")::lock);
        peer.welcome();
        Background<Void> script = running(() -> {
            for (List<?> q = peer.read(); q != null; q = peer.read()) {
                peer.say(11, q.get(1), "going away");
            }
        });
        Until.failed(Code.DRAINING, acquired.thrown());
        client.close();
        script.result();
    }

    @ParameterizedTest
    @CsvSource({"4,CANCELED,NotAcquiredException", "5,UPGRADE,NotAcquiredException", "6,UNAVAILABLE,UnavailableException",
        "8,LIMIT,LockException", "9,INVALID,LockException", "10,UNSUPPORTED,LockException", "11,DRAINING,UnavailableException",
        "12,DENIED,LockException", "16,OVERLONG,LockException", "200,OTHER,LockException"})
    void every_failure_of_an_acquire_has_its_exception(int code, Code expected, String name) {
        SidecarLock lock = lock("k");
        Background<Boolean> acquired = background(lock::tryLock);
        peer.welcome();
        peer.say(code, peer.expect(Codes.ACQUIRE).get(1), "why", 5);
        Throwable e = Until.failed(expected, acquired.thrown());
        assertEquals(name, e.getClass().getSimpleName());
        assertTrue(e.getMessage().contains("why") && e.getMessage().contains(peer.path.toString()), e.getMessage());
        assertFalse(lock.isHeldByOwner());
        inStep();
    }

    @Test
    void busy_and_timeout_are_no_exceptions_where_there_is_a_result() {
        Background<Boolean> acquired = background(() -> lock("k").tryLock(1, TimeUnit.MINUTES));
        peer.welcome();
        peer.say(1, peer.expect(Codes.ACQUIRE).get(1), "held", 29_000);
        assertFalse(acquired.result());
        acquired = background(() -> lock("k").tryLock(1, TimeUnit.MINUTES));
        peer.say(2, peer.expect(Codes.ACQUIRE).get(1), "");
        assertFalse(acquired.result());
        Background<Void> must = running(lock("k")::lock);
        peer.say(2, peer.expect(Codes.ACQUIRE).get(1), "");
        assertSame(NotAcquiredException.class, must.thrown().getClass());
    }

    @Test
    void a_release_that_the_store_has_not_confirmed() {
        SidecarLock lock = held(60_000);
        Background<Void> released = running(lock::unlock);
        peer.say(7, peer.expect(Codes.RELEASE).get(1), "why");
        released.result();
        assertFalse(lock.isHeldByOwner());
        Background<Lease> leased = background(() -> client.lease("l"));
        peer.grant(60_000);
        var future = leased.result().releaseAsync();
        peer.say(7, peer.expect(Codes.RELEASE).get(1), "why");
        Until.failed(Code.UNKNOWN, background(future::join).thrown());
    }

    @Test
    void a_release_that_is_not_answered() {
        client(6000);
        SidecarLock lock = held(60_000);
        Background<Void> released = running(lock::unlock);
        talkUntilEnded(released);
        released.result();
        assertFalse(lock.isHeldByOwner());
        peer.expect(Codes.RELEASE);
        Background<Lease> leased = background(() -> client.lease("l"));
        peer.grant(60_000);
        var future = leased.result().releaseAsync();
        Background<Void> joined = background(future::join);
        talkUntilEnded(joined);
        Until.failed(Code.UNKNOWN, joined.thrown());
    }

    @Test
    void a_release_that_is_not_held_says_so() {
        SidecarLock lock = held(60_000);
        Background<Void> released = running(lock::unlock);
        peer.say(3, peer.expect(Codes.RELEASE).get(1), "why");
        assertEquals("gone", ((LostException) released.thrown()).reason());
    }

    @Test
    void the_end_of_the_connection_is_release() {
        SidecarLock lock = held(60_000);
        Background<Void> released = running(lock::unlock);
        peer.expect(Codes.RELEASE);
        peer.hangUp();
        released.result();
        assertFalse(lock.isHeldByOwner());
    }

    @Test
    void the_socket_is_closed_when_the_daemon_says_so() {
        SidecarLock lock = held(60_000);
        peer.say(67, 0, 11, "the daemon is stopping");
        until("it is lost", () -> !lock.isHeldByOwner());
        assertNull(peer.read(), "the client has closed its side");
        Background<Duration> pinged = background(client::ping);
        peer.welcome();
        peer.pong();
        pinged.result();
        assertFalse(lock.isHeldByOwner());
    }
}
