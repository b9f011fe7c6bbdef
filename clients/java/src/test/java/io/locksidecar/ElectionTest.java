package io.locksidecar;

import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Leader election on the real daemon. */
class ElectionTest extends OnDaemon {
    private Election election(Candidate candidate) {
        return closing(connect().election(key, candidate));
    }

    private void free() throws InterruptedException {
        connect().lease(key).close();
    }

    /** Works until it may end, whatever interrupts it. */
    private static void stubborn(CountDownLatch latch) {
        while (true) {
            try {
                latch.await();
                return;
            } catch (InterruptedException e) {
                continue;
            }
        }
    }

    @Test
    void one_leads_at_a_time() throws InterruptedException {
        Candidate one = new Candidate();
        Candidate two = new Candidate();
        Election first = election(one).start();
        Term term = one.next();
        assertTrue(first.isLeader() && term.isValid());
        assertEquals(term, first.term().orElseThrow());
        assertEquals(key, term.key());
        assertTrue(term.fence() > 0);
        assertTrue(term.remaining().compareTo(Duration.ZERO) > 0);
        term.check();
        Election second = election(two).start();
        untilWaiting(connect(), key, 1);
        assertFalse(second.isLeader());
        assertTrue(second.term().isEmpty());
        first.stop();
        Term next = two.next();
        assertTrue(next.fence() > term.fence());
        assertFalse(first.isLeader() || term.isValid());
        assertEquals(Duration.ZERO, term.remaining());
        assertEquals("resigned", assertThrows(LostException.class, term::check).reason());
        first.close();
        assertTrue(List.of("elected", "lost -", "returned").containsAll(one.said), one.said::toString);
        one.inStep();
        assertTrue(first.failure().isEmpty());
        second.close();
        two.inStep();
        free();
    }

    @Test
    void no_successor_while_a_term_given_up_still_works() {
        Candidate one = new Candidate();
        Candidate two = new Candidate();
        CountDownLatch done = new CountDownLatch(1);
        one.work = term -> stubborn(done);
        Election first = election(one).start();
        one.next();
        election(two).start();
        untilWaiting(connect(), key, 1);
        first.stop();
        until("onLost is called at once", () -> one.losses() == 1);
        assertFalse(first.isLeader());
        assertEquals(List.of("elected", "lost -"), one.said);
        Background<Void> closed = running(first::close);
        assertEquals(1, waiters(connect(), key), "it still holds the lock");
        assertTrue(two.said.isEmpty() && !closed.isDone());
        done.countDown();
        two.next();
        closed.result();
        assertEquals(List.of("elected", "lost -", "returned"), one.said);
    }

    @Test
    void one_works_at_a_time_whoever_resigns() {
        AtomicInteger working = new AtomicInteger();
        AtomicInteger overlaps = new AtomicInteger();
        List<Candidate> candidates = new ArrayList<>();
        List<Election> elections = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            Candidate c = new Candidate();
            c.work = term -> {
                overlaps.addAndGet(working.getAndIncrement());
                try {
                    Thread.sleep(1_000_000);
                } finally {
                    working.decrementAndGet();
                }
            };
            candidates.add(c);
            Election election = election(c).start();
            elections.add(election);
            if (i == 0) {
                until("the first leads", election::isLeader); // else the second may come first
            } else {
                untilWaiting(connect(), key, i);
            }
        }
        for (int n = 0; n < 40; n++) {
            Candidate c = candidates.get(n % 4); // they come round in order
            Term term = c.next();
            assertTrue(elections.get(n % 4).isLeader());
            untilWaiting(connect(), key, 3); // the one before has come back to the queue
            elections.get(n % 4).resign();
            assertFalse(term.isValid());
        }
        elections.forEach(Election::close);
        candidates.forEach(Candidate::inStep);
        assertEquals(0, overlaps.get());
        assertTrue(elections.stream().allMatch(e -> e.failure().isEmpty()));
    }

    @Test
    void that_on_elected_returns_does_not_end_the_term() throws InterruptedException {
        Candidate one = new Candidate();
        one.work = Candidate.NOTHING;
        Election election = election(one).start();
        Term term = one.next();
        until("it has returned", () -> one.said.contains("returned"));
        assertFalse(connect().lock(key).tryLock(50, TimeUnit.MILLISECONDS));
        assertTrue(term.isValid() && election.isLeader());
        assertEquals(0, one.losses());
        election.close();
        assertEquals(List.of("elected", "returned", "lost -"), one.said);
    }

    @Test
    void an_exception_out_of_on_elected_ends_the_campaign() throws InterruptedException {
        Candidate one = new Candidate();
        Exception why = new java.io.IOException("the work failed");
        one.work = term -> {
            throw why;
        };
        Election election = election(one);
        assertSame(why, running(election::run).thrown());
        assertSame(why, election.failure().orElseThrow());
        assertEquals(List.of("elected", "returned", "lost -"), one.said);
        free();
        one.work = term -> {
            throw new AssertionError("or an Error");
        };
        one.lost = one.work;
        Election background = election(one).start();
        until("it is kept", () -> background.failure().isPresent());
        background.close();
        Throwable kept = assertInstanceOf(AssertionError.class, background.failure().orElseThrow());
        assertInstanceOf(AssertionError.class, kept.getSuppressed()[0]);
        free();
    }

    @Test
    void an_exception_out_of_on_lost_ends_the_campaign() throws InterruptedException {
        Candidate one = new Candidate();
        one.lost = term -> {
            throw new IllegalStateException("not to be told");
        };
        Election election = election(one);
        Background<Void> campaign = running(election::run);
        one.next();
        election.resign();
        assertInstanceOf(IllegalStateException.class, campaign.thrown());
        one.inStep();
        free();
    }

    @Test
    void that_a_term_is_over_is_no_failure() {
        Candidate one = new Candidate();
        List<Candidate.Work> works = List.of(
                Candidate.UNTIL_INTERRUPTED,
                term -> {
                    while (true) {
                        term.check();
                        Thread.onSpinWait();
                    }
                },
                term -> {
                    try {
                        Thread.sleep(Long.MAX_VALUE);
                    } catch (InterruptedException e) {
                        throw new IllegalStateException(new RuntimeException(e));
                    }
                });
        one.work = works.get(0);
        Election election = election(one).start();
        for (int i = 1; i <= works.size(); i++) {
            one.next();
            one.work = works.get(i % works.size());
            election.resign();
        }
        one.next();
        assertTrue(election.failure().isEmpty());
        one.work = term -> {
            throw new InterruptedException("by nobody of ours");
        };
        election.resign();
        one.next();
        until("that is one", () -> election.failure().isPresent());
    }

    @Test
    void stopped_while_it_waits() {
        SidecarLock lock = connect().lock(key);
        lock.lock();
        Candidate one = new Candidate();
        Election election = election(one);
        Background<Void> campaign = running(election::run);
        untilWaiting(connect(), key, 1);
        election.resign(); // there is no term
        election.stop();
        campaign.result();
        untilWaiting(connect(), key, 0);
        Election other = election(one).start();
        untilWaiting(connect(), key, 1);
        other.close();
        assertEquals(0, waiters(connect(), key));
        assertTrue(one.said.isEmpty() && other.failure().isEmpty());
    }

    @Test
    void stopped_at_whatever_moment() throws InterruptedException {
        Sidecar client = connect();
        for (int n = 0; n < 150; n++) {
            Candidate one = new Candidate();
            Election election = client.election(key, one).start();
            for (int spin = n % 50 * 2000; spin > 0; spin--) {
                Thread.onSpinWait();
            }
            election.close();
            one.inStep();
            assertTrue(election.failure().isEmpty(), () -> election.failure().toString());
            assertEquals(0, one.working.get());
        }
        free();
    }

    @Test
    void stopped_by_its_own_listener() throws InterruptedException {
        for (boolean inLost : new boolean[] {false, true}) {
            Candidate one = new Candidate();
            Election election = election(one);
            Candidate.Work all = term -> {
                election.stop();
                election.close(); // does not wait for itself
                election.resign();
                assertFalse(election.isLeader());
            };
            one.work = inLost ? Candidate.UNTIL_INTERRUPTED : all;
            one.lost = inLost ? all : Candidate.NOTHING;
            Background<Void> campaign = running(election::run);
            one.next();
            election.resign();
            campaign.result();
            one.inStep();
            free();
        }
    }

    @Test
    void resigned_by_its_own_listener() {
        Candidate one = new Candidate();
        Election election = election(one);
        one.work = term -> election.resign();
        election.start();
        Term term = one.next();
        assertTrue(one.next().fence() > term.fence());
    }

    @Test
    void an_interrupt_of_run_ends_the_campaign() throws InterruptedException {
        Candidate one = new Candidate();
        Background<Void> leading = running(election(one)::run);
        one.next();
        Background<Void> waiting = running(election(new Candidate())::run);
        untilWaiting(connect(), key, 1);
        waiting.thread.interrupt();
        assertInstanceOf(InterruptedException.class, waiting.thrown());
        untilWaiting(connect(), key, 0);
        leading.thread.interrupt();
        assertInstanceOf(InterruptedException.class, leading.thrown());
        assertTrue(one.said.contains("lost -"), one.said::toString);
        one.inStep();
        free();
        Background<Void> before = running(() -> {
            Thread.currentThread().interrupt();
            election(new Candidate()).run();
        });
        assertInstanceOf(InterruptedException.class, before.thrown());
    }

    @Test
    void a_campaign_in_an_executor() throws InterruptedException {
        ExecutorService pool = Executors.newSingleThreadExecutor();
        Candidate one = new Candidate();
        Election election = election(one).start(pool);
        one.next();
        Election never = election(new Candidate()).start(pool); // waits for a thread
        never.close();
        pool.shutdownNow(); // interrupts
        assertTrue(pool.awaitTermination(Until.BOUND, TimeUnit.SECONDS));
        one.inStep();
        assertTrue(election.failure().isEmpty());
        Election refused = election(new Candidate());
        assertThrows(RejectedExecutionException.class, () -> refused.start(pool));
        refused.close();
        free();
    }

    @Test
    void it_campaigns_once() throws Exception {
        Election election = election(new Candidate()).start();
        assertThrows(IllegalStateException.class, election::start);
        assertThrows(IllegalStateException.class, election::run);
        election.close();
        election.close();
        assertThrows(IllegalStateException.class, election::run);
        Candidate never = new Candidate();
        Election stopped = election(never);
        stopped.close();
        stopped.run();
        assertTrue(never.said.isEmpty());
        assertTrue(stopped.toString().contains(key));
    }

    @Test
    void closing_the_client_loses_the_term() {
        Sidecar client = connect();
        Candidate one = new Candidate();
        Election election = closing(client.election(key, one));
        Background<Void> campaign = running(election::run);
        one.next();
        client.close();
        Until.failed(Code.CLOSED, campaign.thrown());
        assertTrue(one.said.contains("lost closed"), one.said::toString);
        one.inStep();
    }

    @Test
    void what_cannot_mend_itself_ends_the_campaign() {
        Sidecar client = connect();
        LockOptions mine = LockOptions.defaults();
        for (LockOptions bad : List.of(mine.shared(), mine.fixed(), mine.owner(Owner.create()), mine.ownedByThread())) {
            Until.refused(Code.INVALID, () -> client.election(key, term -> { }, bad));
        }
        Election election = closing(client.election(key, term -> { }, mine.ttl(Duration.ofDays(2))));
        Until.failed(Code.INVALID, running(election::run).thrown());
        Until.failed(Code.INVALID, election.failure().orElseThrow());
    }
}
