package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** At most one thread reads a connection, and callers read only for as long as they wait. */
class ReaderTest extends OnPeer {
    /** Tells whether the current thread could become the reader of the connection. */
    private boolean leads() {
        Wait.Value<Boolean> wait = new Wait.Value<>(conn());
        wait.mayRead = true;
        return conn().lead(wait, System.nanoTime());
    }

    @Test
    void the_io_thread_remains_the_reader_until_it_has_read_everything() throws Exception {
        client.close();
        CompletableFuture<Boolean> led = new CompletableFuture<>();
        client = Sidecar.builder() // the I/O thread itself runs the listener, between two reads
                .socket(peer.path).executor(Runnable::run).onLost(loss -> led.complete(leads())).build();
        Background<Duration> ping = background(client::ping);
        peer.welcome();
        Object id = peer.expect(Codes.PING).get(1);
        until("its caller waits", () -> ping.thread.getState() == Thread.State.WAITING
                || ping.thread.getState() == Thread.State.TIMED_WAITING);
        peer.raw(together(
                Values.frame(0, id, 1),
                Values.frame(68, 0, "k", number, Peer.FENCE, 3, "no such hold"),
                Values.frame(200, 0, "more than one read takes".repeat(1500))));
        assertFalse(led.get(Until.BOUND, TimeUnit.SECONDS), "two threads read");
    }

    @Test
    void a_wait_ends_at_its_limit_although_nothing_else_is_in_flight() {
        held(60_000);
        AtomicInteger rounds = new AtomicInteger();
        Wait never = new Wait() {
            @Override
            boolean done() {
                return false;
            }

            @Override
            Conn conn() {
                rounds.incrementAndGet();
                return ReaderTest.this.conn();
            }
        };
        running(() -> {
            while (true) {
                peer.pong();
            }
        });
        assertFalse(background(() -> {
            do {
                client.ping();
            } while (!leads());
            return never.await(System.nanoTime() + 1_000_000);
        }).result());
        assertTrue(rounds.get() < 1000, "it spins");
    }

    @Test
    void an_interrupt_of_the_io_thread_that_awaits_the_welcome_is_over_at_once() {
        CompletableFuture<Thread> io = new CompletableFuture<>();
        client.link.threads = link -> {
            IoThread made = new IoThread(link);
            io.complete(made);
            return made;
        };
        Background<Sidecar> connected = background(client::connect);
        peer.accept();
        peer.expect(Codes.HELLO);
        io.join().interrupt();
        until("the selector waits again", () -> !io.join().isInterrupted());
        peer.say(0, 1, 1, 1, Peer.millis(), 65536, 100, 30000, 86400000, 1, List.of(), "test");
        connected.result();
    }
}
