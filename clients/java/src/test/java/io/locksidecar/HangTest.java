package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** A daemon that hangs while a thread waits without bound. */
@Execution(ExecutionMode.CONCURRENT) // it takes seconds
class HangTest extends OnPeer {
    @Test
    void a_frozen_daemon_ends_every_wait() throws InterruptedException {
        try (Daemon daemon = Daemon.started();
                Sidecar holder = Sidecar.create(daemon.path);
                Sidecar client = Sidecar.builder().socket(daemon.path).timeout(Duration.ofSeconds(2)).build()) {
            Lease theirs = holder.lease("k");
            Lease mine = client.lease("mine");
            List<Background<?>> waiting = List.of(
                    running(client.lock("k")::lock), background(() -> client.lease("k")),
                    background(() -> client.leaseAll(List.of("a", "k"))), background(client.leaseAsync("k")::join));
            OnDaemon.untilWaiting(holder, "k", 4);
            daemon.freeze();
            for (Background<?> w : waiting) {
                Throwable e = w.thrown();
                e = e instanceof CompletionException ? e.getCause() : e;
                Until.failed(Code.UNAVAILABLE, e);
                assertTrue(e.getMessage().contains("has not answered for 2000 ms"), e.getMessage());
            }
            assertFalse(mine.isValid());
            daemon.thaw();
            assertEquals("connection", assertThrows(LostException.class, mine::close).reason());
            theirs.close();
            client.lease("k").close();
        }
    }

    @Test
    void a_daemon_that_answers_pings_may_let_callers_wait() {
        client(6000);
        Background<Void> waiting = running(lock("k")::lock);
        peer.welcome();
        Object id = peer.expect(Codes.ACQUIRE).get(1);
        for (int i = 0; i < 3; i++) {
            peer.pong();
        }
        assertFalse(waiting.isDone());
        peer.say(0, id, Peer.FENCE, 60_000, Peer.millis() + 60_000, 1, 0, 0);
        waiting.result();
        Background<Void> next = running(lock("other")::lock);
        peer.expect(Codes.ACQUIRE);
        peer.expect(Codes.PING); // no answer
        assertInstanceOf(UnavailableException.class, next.thrown());
        assertNull(peer.read(), "the client has closed its side");
        assertFalse(lock("k").isHeldByOwner());
    }
}
