package io.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

/** A clock that counts sleep, made of clocks that do not. */
class ClockTest {
    private static final long MS = 1_000_000;
    private static final long S = 1_000 * MS;

    private final AtomicLong nano = new AtomicLong(50 * S);
    private final AtomicLong slept = new AtomicLong();
    private final AtomicLong wall = new AtomicLong(1_700_000_000 * S);

    private BootClock clock(boolean uptime) {
        return new BootClock(
                nano::get, wall::get, uptime ? () -> (nano.get() + slept.get()) / (10 * MS) * (10 * MS) : null);
    }

    private void pass(long nanos) {
        nano.addAndGet(nanos);
        wall.addAndGet(nanos);
    }

    private void sleep(long nanos) {
        slept.addAndGet(nanos);
        wall.addAndGet(nanos);
    }

    private long truth() {
        return nano.get() + slept.get();
    }

    private void check(BootClock clock) {
        assertTrue(clock.now() >= truth(), "never behind");
        assertTrue(clock.now() <= truth() + 10 * MS);
        assertTrue(clock.floor() <= truth(), "never ahead");
        assertTrue(clock.floor() >= truth() - 10 * MS);
    }

    @Test
    void it_counts_sleep_and_is_never_behind() {
        Random random = new Random(1);
        BootClock clock = clock(true);
        long before = 0;
        for (int n = 0; n < 10_000; n++) {
            switch (random.nextInt(20)) {
                case 0 -> sleep(100 * MS + random.nextInt(1000) * S);
                case 1 -> wall.addAndGet(random.nextInt(2_000) * S - 1_000 * S); // somebody sets the clock
                default -> pass(random.nextInt(3_000) * MS / (1 + random.nextInt(1000)));
            }
            check(clock);
            assertTrue(clock.floor() >= before);
            before = clock.floor();
        }
    }

    @Test
    void a_sleep_that_setting_the_clock_hides_shows_within_a_second() {
        BootClock clock = clock(true);
        pass(100 * MS);
        sleep(30 * S);
        wall.addAndGet(-30 * S);
        pass(1001 * MS);
        check(clock);
    }

    @Test
    void where_there_is_only_the_wall_clock_a_jump_counts_as_sleep() {
        BootClock clock = clock(false);
        long start = clock.now();
        pass(10 * S);
        assertEquals(10 * S, clock.now() - start);
        sleep(500 * MS);
        assertEquals(10 * S, clock.now() - start, "too little to tell");
        sleep(60 * S);
        assertEquals(70 * S, clock.now() - start);
        wall.addAndGet(-3600 * S);
        assertEquals(70 * S, clock.now() - start, "it never goes back");
        pass(S);
        assertEquals(71 * S, clock.now() - start);
        assertEquals(71 * S, clock.floor() - start);
    }

    @Test
    void uptime_is_read_as_it_is_written() {
        assertEquals(1234567 * 10 * MS, BootClock.parse("12345.67 999.99\n".getBytes(), 16));
        assertEquals(0, BootClock.parse("0.00 0.00\n".getBytes(), 10));
        for (String s : new String[] {"", "12", "12.3 4", ".12 3", "a.bc d", "1.2345 6"}) {
            assertEquals(-1, BootClock.parse(s.getBytes(), s.length()), s);
        }
        assertEquals(-1, BootClock.parse(new byte[8], -1));
    }

    @Test
    void the_systems_goes_on() {
        long before = BootClock.SYSTEM.floor();
        long after = BootClock.SYSTEM.now();
        assertTrue(after >= before && after - before < 60 * S);
    }
}
