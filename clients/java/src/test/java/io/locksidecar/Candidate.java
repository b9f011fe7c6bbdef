package io.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** A listener that records its calls in order. The test decides what its onElected does. */
class Candidate implements Election.Listener {
    /** What onElected does. */
    interface Work {
        void run(Term term) throws Exception;
    }

    /** Works until it is interrupted. */
    static final Work UNTIL_INTERRUPTED = term -> Thread.sleep(Long.MAX_VALUE);
    static final Work NOTHING = term -> { };

    final BlockingQueue<Term> elected = new LinkedBlockingQueue<>();
    final List<String> said = new CopyOnWriteArrayList<>();
    /** The number of terms whose onElected or onLost runs, of all candidates that share it. */
    final AtomicInteger working;
    volatile Work work = UNTIL_INTERRUPTED;
    volatile Work lost = NOTHING;

    Candidate() {
        this(new AtomicInteger());
    }

    Candidate(AtomicInteger working) {
        this.working = working;
    }

    @Override
    public void onElected(Term term) throws Exception {
        Work mine = work; // before the test learns of the term, and may set the work of the next one
        said.add("elected");
        working.incrementAndGet();
        elected.add(term);
        try {
            mine.run(term);
        } finally {
            said.add("returned");
            working.decrementAndGet();
        }
    }

    @Override
    public void onLost(Term term, Optional<LostException> reason) throws Exception {
        working.incrementAndGet();
        said.add("lost " + reason.map(LostException::reason).orElse("-"));
        try {
            lost.run(term);
        } finally {
            working.decrementAndGet();
        }
    }

    /** Waits for the next term. */
    Term next() {
        try {
            Term term = elected.poll(Until.BOUND, TimeUnit.SECONDS);
            assertTrue(term != null, () -> "not elected; " + said);
            return term;
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    /** Returns how often onLost was called. */
    long losses() {
        return said.stream().filter(s -> s.startsWith("lost")).count();
    }

    /** Checks that each term had exactly its two calls. */
    void inStep() {
        assertEquals(said.stream().filter("elected"::equals).count(), losses(), said::toString);
        assertEquals(said.stream().filter("returned"::equals).count(), losses(), said::toString);
    }
}
