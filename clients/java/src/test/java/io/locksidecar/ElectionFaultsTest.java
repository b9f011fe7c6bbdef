package io.locksidecar;

import static io.locksidecar.Peer.FENCE;
import static io.locksidecar.Peer.millis;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/**
 * Terms that are lost, and campaigns that continue after failures. All of it at once, because some tests take seconds.
 */
@Execution(ExecutionMode.CONCURRENT)
class ElectionFaultsTest {
    private static final LockOptions SECOND = LockOptions.defaults().ttl(Duration.ofSeconds(1));

    @Test
    void the_daemon_is_killed_and_restarted_in_a_term() {
        try (Daemon daemon = Daemon.started(); Sidecar client = Sidecar.create(daemon.path)) {
            Candidate one = new Candidate();
            CountDownLatch done = new CountDownLatch(1);
            one.work = term -> {
                while (done.getCount() > 0) { // it ignores interrupts
                    try {
                        done.await();
                    } catch (InterruptedException e) {
                        continue;
                    }
                }
            };
            try (Election election = client.election("k", one, SECOND).start()) {
                Term term = one.next();
                daemon.kill();
                until("onLost is called while onElected runs", () -> one.losses() == 1);
                assertEquals(List.of("elected", "lost connection"), one.said);
                assertFalse(election.isLeader());
                assertEquals("connection", term.lost().toCompletableFuture().join().reason());
                daemon.start();
                try (Sidecar other = Sidecar.builder().socket(daemon.path).patience(Duration.ofSeconds(30)).build()) {
                    SidecarLock theirs = other.lock("k");
                    theirs.lock(); // nobody requests it before the work has ended
                    theirs.unlock();
                    assertEquals(List.of("elected", "lost connection"), one.said);
                }
                one.work = Candidate.UNTIL_INTERRUPTED;
                done.countDown();
                Term next = one.next();
                assertTrue(next.fence() > term.fence());
                assertTrue(election.isLeader());
                election.stop();
            }
            one.inStep();
        }
    }

    @Test
    void a_campaign_outlives_the_daemon() {
        try (Daemon daemon = Daemon.started();
                Sidecar client = Sidecar.builder().socket(daemon.path).patience(Duration.ofMillis(50)).build()) {
            Candidate one = new Candidate();
            try (Election election = client.election("k", one, SECOND).start()) {
                one.next();
                daemon.kill();
                until("it is lost", () -> one.losses() == 1);
                until("it has asked in vain", () -> client.link.live() == null && one.said.contains("returned"));
                daemon.start();
                one.next();
                assertTrue(election.failure().isEmpty());
            }
            one.inStep();
            daemon.kill();
            Election stopped = client.election("k", one).start(); // no daemon: it pauses, and is stopped in that
            stopped.close();
            assertTrue(stopped.failure().isEmpty());
        }
    }

    @Test
    void a_leader_that_is_frozen_has_lost() throws Exception {
        Path config = Files.createTempFile("ls-", ".yaml");
        Files.writeString(config, "namespaces:\n  leader: {heartbeat: 4s}\n");
        try (Daemon daemon = Daemon.started("--config", config.toString());
                Daemon.Program frozen = new Daemon.Program(Frozen.class, daemon.path.toString(), "leader");
                Sidecar client = Sidecar.create(daemon.path)) {
            String[] first = frozen.line().split(" ");
            assertEquals("elected", first[0]);
            Daemon.freeze(frozen.process);
            Candidate other = new Candidate();
            try (Election election = client.election("leader", other).start()) {
                Term term = other.next();
                assertTrue(term.fence() > Long.parseLong(first[1]));
                Daemon.signal(frozen.process, "CONT");
                List<String> said = List.of(frozen.line(), frozen.line());
                assertTrue(said.contains("lost silent") || said.contains("lost silence"), said.toString());
                assertTrue(said.contains("interrupted, leading false"), said.toString());
                OnDaemon.untilWaiting(client, "leader", 1); // it still campaigns
                assertTrue(election.isLeader());
            }
            String[] again = frozen.line().split(" ");
            assertEquals("elected", again[0]);
        } finally {
            Files.delete(config);
        }
    }

    /** Campaigns, and prints its calls. */
    static final class Frozen {
        private static Election election;

        public static void main(String[] args) throws Exception {
            election = Sidecar.create(Path.of(args[0])).election(args[1], new Election.Listener() {
                @Override
                public void onElected(Term term) throws InterruptedException {
                    System.out.println("elected " + term.fence());
                    try {
                        Thread.sleep(Long.MAX_VALUE);
                    } catch (InterruptedException e) {
                        System.out.println("interrupted, leading " + election.isLeader());
                    }
                }

                @Override
                public void onLost(Term term, Optional<LostException> reason) {
                    System.out.println("lost " + reason.orElseThrow().reason());
                }
            });
            election.run();
        }
    }

    @Test
    void nobody_leads_beyond_what_was_stated() throws Exception {
        try (Peer peer = new Peer(); Sidecar client = Sidecar.create(peer.path)) {
            Candidate one = new Candidate();
            try (Election election = client.election("k", one).start()) {
                peer.welcome();
                List<?> q = peer.expect(Codes.ACQUIRE);
                assertEquals(List.of("k", 0L, -1L), List.of(q.get(2), q.get(4), q.get(5)));
                long deadline = millis() + 5000;
                peer.say(0, q.get(1), FENCE, 5000, deadline, 1, 0, 0);
                Term term = one.next();
                boolean late;
                do {
                    late = millis() > deadline;
                    boolean leads = election.isLeader() || term.isValid();
                    assertFalse(late && leads, "it leads too long");
                } while (!late);
                until("it is told", () -> one.losses() == 1);
                assertTrue(one.said.contains("lost silence"), one.said::toString);
                peer.expect(Codes.RELEASE);
                peer.expect(Codes.ACQUIRE); // it still campaigns
                election.stop();
                List<?> cancel = peer.expect(Codes.CANCEL);
                peer.say(4, cancel.get(2), "withdrawn");
                peer.say(0, cancel.get(1), 1);
            }
            one.inStep();
        }
    }

    @Test
    void what_mends_itself_is_asked_again() {
        try (Peer peer = new Peer();
                Sidecar client = Sidecar.builder().socket(peer.path).patience(Duration.ofMillis(1)).build()) {
            Candidate one = new Candidate();
            Election election = client.election("k", one);
            Background<Void> campaign = running(election::run);
            peer.welcome();
            for (int code : new int[] {Codes.TIMEOUT, 6, 8, Codes.DRAINING}) {
                peer.say(code, peer.expect(Codes.ACQUIRE).get(1), "why");
            }
            peer.expect(Codes.ACQUIRE);
            peer.welcome(); // the connection has ended
            peer.expect(Codes.ACQUIRE);
            peer.accept();
            peer.read();
            peer.say(67, 0, 8, "too many connections");
            peer.welcome();
            peer.grant(60_000);
            one.next();
            assertTrue(election.isLeader() && election.failure().isEmpty());
            election.stop();
            peer.released();
            campaign.result();
            one.inStep();
        }
    }

    @Test
    void what_does_not_ends_the_campaign() {
        for (Object[] refusal : new Object[][] {
            {12, Code.DENIED}, {9, Code.INVALID}, {10, Code.UNSUPPORTED}
        }) {
            try (Peer peer = new Peer(); Sidecar client = Sidecar.create(peer.path)) {
                Election election = client.election("k", new Candidate());
                Background<Void> campaign = running(election::run);
                peer.welcome();
                peer.say(refusal[0], peer.expect(Codes.ACQUIRE).get(1), "why");
                Until.failed((Code) refusal[1], campaign.thrown());
            }
        }
        try (Peer peer = new Peer(); Sidecar client = Sidecar.create(peer.path)) {
            Election election = client.election("k", new Candidate());
            Background<Void> campaign = running(election::run);
            peer.accept();
            peer.read();
            peer.say(67, 0, 14, "versions 2 to 3");
            Until.failed(Code.BAD_VERSION, campaign.thrown());
            Until.failed(Code.BAD_VERSION, election.failure().orElseThrow());
        }
    }
}
