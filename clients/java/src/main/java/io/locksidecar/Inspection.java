package io.locksidecar;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * The state of a lock or a semaphore when the daemon was asked. It may have changed since.
 *
 * @param held whether the lock, or a permit of the semaphore, is held on any host, according to the store
 * @param here whether clients of this host's daemon hold it
 * @param shared whether it is held shared
 * @param holdersHere how many clients hold it on this host
 * @param waitersHere how many clients wait for it on this host
 * @param left the time until the present lease ends unless it is renewed; empty if not known, or free
 * @param fence the newest fence on this host; 0 if it is not held here
 * @param holders the holders on any host that the daemon can name, at most 64. A daemon of an older version names none
 */
public record Inspection(
        boolean held, boolean here, boolean shared, long holdersHere, long waitersHere, Optional<Duration> left, long fence,
        List<Holder> holders) {
    /** The number of fields of a reply that are read. Older daemons send one less. */
    static final int FIELDS = 7;
    /** The value of held if a client of this daemon holds it. */
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
