package io.locksidecar;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The keys of one request: the lock of one key; the locks of several at once, in the given order; or one permit of a
 * semaphore. permits is the number of permits of the semaphore, and 0 for locks.
 */
record Keys(Key[] all, boolean many, int permits) {
    private static final int SHOWN = 3;

    static Keys of(String key) {
        return new Keys(new Key[] {Key.of(key)}, false, 0);
    }

    /** Returns the keys for a permit of the semaphore of a key, which has 1 to 10,000. */
    static Keys permit(String key, int permits) {
        Key[] one = {Key.of(key)};
        if (permits < 1 || permits > Codes.MAX_PERMITS) {
            throw new InvalidException("semaphore \"" + key + "\" of " + permits
                    + " permits; 1 to 10000 are allowed");
        }
        return new Keys(one, false, permits);
    }

    /** Returns keys if they are 1 to 1,024 different ones. */
    static Keys of(Collection<String> keys) {
        List<Key> all = new ArrayList<>();
        Set<String> seen = new HashSet<>();
        for (String key : Objects.requireNonNull(keys, "keys")) {
            all.add(Key.of(key));
            if (!seen.add(key)) {
                throw new InvalidException("key \"" + key + "\" is named twice");
            }
        }
        if (all.isEmpty() || all.size() > Codes.MAX_KEYS) {
            throw new InvalidException(all.size() + " keys at once; 1 to 1024 are allowed");
        }
        return new Keys(all.toArray(Key[]::new), true, 0);
    }

    String text(int i) {
        return all[i].text();
    }

    /** Returns their names in messages. */
    @Override
    public String toString() {
        String some = Stream.of(all).limit(SHOWN).map(k -> '"' + k.text() + '"').collect(Collectors.joining(", "));
        return (permits > 0 ? "semaphore " : many ? "locks " : "lock ") + some
                + (all.length > SHOWN ? " and " + (all.length - SHOWN) + " more" : "");
    }
}
