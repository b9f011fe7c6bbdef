package io.locksidecar.chaos;

import io.locksidecar.Lease;
import io.locksidecar.LockException;
import java.util.List;

/** The result of one acquire, of one key or several, and what has been recorded of it. */
final class Held {
    private static final long MILLI = 1_000_000;

    private final Worker worker;
    final List<Long> numbers;
    private final Lease one; // or
    private final Lease several;
    private long said;
    private String last; // the last check that found it valid, unless it is recorded already
    private long lastAt;
    private boolean gone;

    Held(Worker worker, List<Long> numbers, Lease one, Lease several) {
        this.worker = worker;
        this.numbers = numbers;
        this.one = one;
        this.several = several;
    }

    long remaining() {
        return (one != null ? one.remaining() : several.remaining()).toNanos();
    }

    long fence(int i) {
        return one != null ? one.fence() : several.fences().get(i);
    }

    /** Checks whether it is still held, and records what has become known. */
    boolean look() {
        long at = worker.now();
        long left = remaining();
        if (left <= 0) {
            if (!gone) {
                gone = true;
                tell();
                note("lost", worker.now(), ",\"r\":\"lost\"");
            }
            return false;
        }
        long until = at + left;
        String state = ",\"u\":" + until;
        if (until > said + 10 * MILLI) {
            note("state", at, state);
            said = until;
            last = null;
        } else {
            last = state;
            lastAt = at;
        }
        return !gone;
    }

    /** Makes the hold a shared one. */
    void lower() {
        look();
        tell();
        note("lower", worker.now(), "");
        String how = "ok";
        try {
            one.downgrade();
        } catch (LockException e) {
            how = Worker.word(e);
        }
        note("low", worker.now(), ",\"r\":\"" + how + "\",\"f\":" + one.fence());
    }

    void leave() {
        look();
        tell();
        note("give", worker.now(), "");
        String how = "ok";
        try {
            if (one != null) {
                one.close();
            } else {
                several.close();
            }
            how = gone ? "gone" : "ok"; // the end of a connection also releases, but the daemon has not said so
        } catch (LockException e) {
            how = Worker.word(e);
        }
        note("gave", worker.now(), ",\"r\":\"" + how + "\"");
    }

    private void tell() {
        if (last != null) {
            note("state", lastAt, last);
            last = null;
        }
    }

    private void note(String event, long at, String rest) {
        for (long n : numbers) {
            worker.note(event, at, ",\"n\":" + n + rest);
        }
    }
}
