package io.locksidecar;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.util.function.LongSupplier;

/**
 * A clock that never goes back and counts the time that the machine sleeps, as CLOCK_BOOTTIME does, which Java cannot
 * read. {@link System#nanoTime} does not advance in a suspended machine.
 *
 * <p>On Linux it is nanoTime plus an offset from /proc/uptime, which is CLOCK_BOOTTIME rounded down to 10 ms. So the
 * offset is known as an interval, which shrinks with each measurement. A sleep moves the wall clock against nanoTime by
 * exactly its duration. So the offset is measured again when the two have moved apart, and in any case once a second.
 *
 * <p>Elsewhere only the wall clock is available: if it jumps forward by more than a second, that counts as sleep. That
 * errs on the safe side: if the clock was set, holds count as lost that are not.
 */
final class BootClock {
    static final BootClock SYSTEM = new BootClock(
            System::nanoTime, () -> System.currentTimeMillis() * 1_000_000, uptimeFile());

    /** The change of wall clock − nanoTime above which the offset is measured again. Like all times here, in nanoseconds. */
    private static final long APART = 20_000_000;
    /** The jump of the wall clock above which it counts as sleep, where there is no /proc/uptime. */
    private static final long JUMP = 1_000_000_000;
    /** The time after which the offset is measured again in any case. */
    private static final long AGAIN = 1_000_000_000;
    /** The resolution of /proc/uptime. */
    private static final long TICK = 10_000_000;

    /** low ≤ true time − nanoTime ≤ high, and drift is wall clock − nanoTime, both at the measurement. */
    private record Sync(long low, long high, long drift, long at) {}

    /** Is held during a measurement. Its callers may hold other locks. */
    final Mutex mu = new Mutex();
    private final LongSupplier nano;
    private final LongSupplier wall;
    private final LongSupplier uptime;
    private volatile Sync sync;

    /** Takes the three sources, all in nanoseconds. uptime is null, or −1 if it cannot be read. */
    BootClock(LongSupplier nano, LongSupplier wall, LongSupplier uptime) {
        this.nano = nano;
        this.wall = wall;
        this.uptime = uptime;
        measure(null);
    }

    /** Returns the time in nanoseconds; never an earlier time than the true one. */
    long now() {
        long n = nano.getAsLong();
        return n + current(n).high;
    }

    /** Returns the time in nanoseconds; never a later time than the true one. */
    long floor() {
        return nano.getAsLong() + current(nano.getAsLong()).low;
    }

    /** Returns the offset for this time of nano, measured again if that is due. */
    private Sync current(long n) {
        Sync s = sync;
        long apart = wall.getAsLong() - n - s.drift;
        if (apart > APART || apart < -APART || n - s.at > AGAIN) {
            mu.lock();
            try (mu) {
                return measure(s);
            }
        }
        return s;
    }

    private Sync measure(Sync old) {
        if (sync != old) {
            return sync; // another thread has measured meanwhile
        }
        long low = 0;
        long high = 0;
        long before = nano.getAsLong();
        for (int i = 0; uptime != null && i < 5; i++) {
            before = nano.getAsLong();
            long up = uptime.getAsLong();
            long after = nano.getAsLong();
            if (up < 0) {
                break;
            }
            low = up - after;
            high = up + TICK - before;
            if (after - before < 1_000_000) {
                break; // this thread was not paused in between
            }
        }
        boolean known = high > low;
        long drift = wall.getAsLong() - nano.getAsLong();
        if (known && old != null && low <= old.high && old.low <= high) {
            low = Math.max(low, old.low);
            high = Math.min(high, old.high);
        } else if (!known && old != null) {
            long jump = drift - old.drift;
            low = old.low;
            high = old.high + (jump > JUMP ? jump : 0);
            low = jump > JUMP ? high : low;
        }
        sync = new Sync(low, high, drift, before);
        return sync;
    }

    private static LongSupplier uptimeFile() {
        try {
            RandomAccessFile file = new RandomAccessFile("/proc/uptime", "r"); // a channel would be interruptible
            byte[] text = new byte[64];
            return () -> { // called under the clock's lock
                try {
                    file.seek(0);
                    return parse(text, file.read(text));
                } catch (IOException e) {
                    return -1;
                }
            };
        } catch (IOException | SecurityException e) {
            return null;
        }
    }

    /** Reads "12345.67 …" as nanoseconds; −1 if it is something else. */
    static long parse(byte[] text, int n) {
        String s = new String(text, 0, Math.max(0, n), StandardCharsets.US_ASCII);
        int space = s.indexOf(' ');
        int dot = s.indexOf('.');
        try {
            return dot < 1 || space != dot + 3 ? -1
                    : (Long.parseLong(s, 0, dot, 10) * 100 + Long.parseLong(s, dot + 1, space, 10)) * TICK;
        } catch (NumberFormatException e) {
            return -1;
        }
    }
}
