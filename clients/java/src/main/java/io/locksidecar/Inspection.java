package io.locksidecar;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * The state of a lock or a semaphore when the daemon was asked. It may have changed since.
 *
 * @param held whether it is held, or a permit of it is, on any host, as far as the store says
 * @param here whether clients of this host's daemon hold it
 * @param shared whether it is held shared
 * @param holdersHere how many clients hold it on this host
 * @param waitersHere how many wait for it on this host
 * @param left the time until the present lease ends unless it is renewed; empty if not known, or free
 * @param fence the newest fence on this host; 0 if it is not held here
 * @param holders the holders that the daemon can name, on any host, at most 64. A daemon of an older version names none
 */
public record Inspection(
        boolean held, boolean here, boolean shared, long holdersHere, long waitersHere, Optional<Duration> left, long fence,
        List<Holder> holders) {
    /** How many fields of a reply are read; those of older daemons have one less. */
    static final int FIELDS = 7;
    /** Held by a client of this daemon. */
    private static final int HERE = 1;

    /** Reads the reply to an inspect. */
    static Inspection read(ByteBuffer b, int fields) {
        Welcome.need(fields, FIELDS - 1);
        long held = Msgpack.getCount(b);
        long mode = Msgpack.getCount(b);
        long holdersHere = Msgpack.getCount(b);
        long waitersHere = Msgpack.getCount(b);
        Optional<Duration> left = Holder.millis(Msgpack.getLong(b));
        long fence = Msgpack.getCount(b);
        List<Holder> holders = new ArrayList<>();
        for (int n = fields < FIELDS ? 0 : Msgpack.getArray(b); n > 0; n--) {
            holders.add(Holder.read(b));
        }
        return new Inspection(
                held != 0, held == HERE, held != 0 && mode == Codes.SHARED, holdersHere, waitersHere, left, fence,
                List.copyOf(holders));
    }
}
