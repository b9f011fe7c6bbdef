package io.locksidecar;

import static io.locksidecar.Until.background;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/** The state of a lock, and its holders on any host. */
class InspectTest extends OnPeer {
    private static final long ME = ProcessHandle.current().pid();

    /** A Redis of the test's own, at a socket. */
    private static final class Redis implements AutoCloseable {
        private final Path dir = Daemon.directory();
        private final Path socket = dir.resolve("redis.sock");
        private final Process process;

        Redis() {
            try {
                process = new ProcessBuilder(
                        "redis-server", "--port", "0", "--unixsocket", socket.toString(), "--save", "", "--dir", dir.toString())
                        .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                        .start();
            } catch (IOException e) {
                throw new UncheckedIOException("these tests need redis-server", e);
            }
            Until.until("Redis listens", () -> Files.exists(socket));
        }

        String url() {
            return "redis+unix://" + socket;
        }

        @Override
        public void close() {
            process.destroyForcibly();
            try {
                process.waitFor();
            } catch (InterruptedException e) {
                throw new AssertionError(e);
            }
            Daemon.delete(dir);
        }
    }

    private static Inspection.Holder only(List<Inspection.Holder> holders) {
        assertEquals(1, holders.size(), holders::toString);
        return holders.get(0);
    }

    @Test
    void holders_on_this_host_and_on_another() throws InterruptedException {
        try (Redis redis = new Redis();
                Daemon here = Daemon.started("--upstream", redis.url());
                Daemon there = Daemon.started("--upstream", redis.url());
                Sidecar client = Sidecar.builder().socket(here.path).name("nightly").label("run 7").build();
                Sidecar other = Sidecar.builder().socket(there.path).build()) {
            SidecarLock lock = client.lock("k");
            SidecarSemaphore permits = client.semaphore("k", 3);
            assertEquals(List.of(), lock.inspect().holders());
            assertEquals(List.of(), permits.inspect().holders());
            lock.lock();
            permits.acquire();
            permits.acquire();

            Inspection.Holder mine = only(lock.inspect().holders());
            assertEquals(Inspection.Holder.Kind.HERE, mine.kind());
            assertEquals(ME, mine.pid());
            assertEquals(lock.fence(), mine.fence());
            assertTrue(mine.session() > 0);
            assertTrue(mine.uid() >= 0);
            assertTrue(mine.client().contains("nightly") && mine.client().contains("run 7"), mine.client());
            assertTrue(mine.held().isPresent());
            assertEquals("process " + ME + " (" + mine.client() + ")", mine.toString());
            assertEquals(2, permits.inspect().holdersHere());
            assertTrue(lock.inspect().here());
            assertEquals(2, permits.inspect().holders().size());
            permits.inspect().holders().forEach(h -> assertEquals(ME, h.pid()));

            Inspection.Holder theirs = only(other.lock("k").inspect().holders());
            assertEquals(Inspection.Holder.Kind.DAEMON, theirs.kind());
            assertEquals(theirs.host(), theirs.toString());
            assertNotEquals("", theirs.host());
            assertNotEquals("", theirs.version());
            assertEquals(here.pid(), theirs.daemonPid());
            assertTrue(theirs.daemonStarted().orElseThrow().isBefore(Instant.now().plusSeconds(60)));
            assertTrue(theirs.left().orElseThrow().compareTo(Duration.ZERO) > 0);
            assertEquals(0, theirs.session());
            assertTrue(other.semaphore("k", 3).inspect().holders().stream().allMatch(h -> h.daemonPid() == here.pid()));
            lock.unlock();
            assertEquals(List.of(), other.lock("k").inspect().holders());
        }
    }

    private Background<Inspection> asked() {
        Background<Inspection> asked = background(lock("k")::inspect);
        peer.welcome();
        return asked;
    }

    private long question() {
        List<?> q = peer.expect(Codes.INSPECT);
        assertEquals(List.of("k", 0L, 1L), q.subList(2, 5));
        return (Long) q.get(1);
    }

    @Test
    void an_older_daemon_names_no_holders() {
        Background<Inspection> asked = asked();
        peer.say(0, question(), 0, 0, 0, 0, -1, 0);
        assertEquals(new Inspection(false, false, false, 0, 0, Optional.empty(), 0, List.of()), asked.result());
        asked = background(lock("k")::inspect);
        peer.say(0, question(), 2, 1, 0, 3, 700, 0);
        assertEquals(
                new Inspection(true, false, true, 0, 3, Optional.of(Duration.ofMillis(700)), 0, List.of()), asked.result());
        asked = background(lock("k")::inspect);
        peer.say(0, question(), 1, 0, 1, 0, -1, Peer.FENCE);
        assertEquals(new Inspection(true, true, false, 1, 0, Optional.empty(), Peer.FENCE, List.of()), asked.result());
    }

    @Test
    void holders_of_every_kind_and_of_a_later_version() {
        Background<Inspection> asked = asked();
        peer.say(0, question(), 2, 0, 0, 0, -1, 0, List.of(
                List.of(1, "", "", 0, 0, 5, -1, "", "", 9, 0, -1, "a\u001b[2J\u202eb\u00e9", 0),
                List.of(2, "web-3", "1.0", 17, 1_700_000_000_000L, -1, 900, "abc", "2 of 3 nodes", 0, 0, -1, "", 0, "more"),
                List.of(3, "", "", 0, 0, -1, -1, "abc", "", 0, 0, -1, "", 0),
                List.of(4, "", "", 0, 0, -1, -1, "abc", "", 0, 0, -1, "", 0),
                List.of(77, "", "", 0, 0, -1, -1, "abc", "", 0, 0, -1, "", 0, List.of(1, "x"))), 1, "later");
        List<Inspection.Holder> all = asked.result().holders();
        assertEquals(List.of("a\ufffd[2J\ufffdb\u00e9", "web-3 (2 of 3 nodes)", "an unregistered daemon", "another program", "another host"),
                all.stream().map(Inspection.Holder::toString).toList());
        assertEquals(List.of(Inspection.Holder.Kind.values()), all.stream().map(Inspection.Holder::kind).toList());
        assertEquals(Optional.of(Instant.ofEpochMilli(1_700_000_000_000L)), all.get(1).daemonStarted());
        assertEquals(Optional.of(Duration.ofMillis(5)), all.get(0).held());
        assertEquals("abc", all.get(2).name());
    }

    @Test
    void a_failure_and_a_truncated_reply() {
        Background<Inspection> asked = asked();
        peer.say(8, question(), "eight are unanswered");
        Until.failed(Code.LIMIT, asked.thrown());
        asked = background(lock("k")::inspect);
        peer.say(0, question(), 2, 0, 0, 0, -1, 0, List.of(List.of(2, "web-3")));
        Until.failed(Code.BAD_FRAME, asked.thrown());
    }
}
