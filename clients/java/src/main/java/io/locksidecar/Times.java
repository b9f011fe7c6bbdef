package io.locksidecar;

import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.TimeUnit;

/** Durations of callers, and on the wire. */
final class Times {
    private Times() {}

    /** Returns d if it is above 0. */
    static Duration positive(Duration d, String what) {
        Objects.requireNonNull(d, what);
        if (d.isNegative() || d.isZero()) {
            throw new InvalidException(what + " is a positive duration");
        }
        return d;
    }

    /** Returns a duration above 0 in milliseconds, at least 1. */
    static long millis(Duration d) {
        try {
            return Math.max(1, d.toMillis());
        } catch (ArithmeticException e) {
            return Long.MAX_VALUE;
        }
    }

    /** Returns a wait in milliseconds, rounded up; a try if there is nothing to wait for. */
    static long wait(Duration d) {
        Objects.requireNonNull(d, "wait");
        return d.isNegative() ? 0 : wait(nanos(d), TimeUnit.NANOSECONDS);
    }

    /** Like wait, with the arguments of Lock. */
    static long wait(long time, TimeUnit unit) {
        long nanos = unit.toNanos(time); // the result is limited if it would not fit
        long millis = nanos / 1_000_000 + (nanos % 1_000_000 > 0 ? 1 : 0);
        return Math.max(0, Math.min(millis, Codes.MAX_WAIT));
    }

    /** Returns a duration that is not negative, in nanoseconds. */
    static long nanos(Duration d) {
        try {
            return d.toNanos();
        } catch (ArithmeticException e) {
            return Long.MAX_VALUE / 4;
        }
    }
}
