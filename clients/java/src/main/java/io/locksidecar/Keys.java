package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.HashSet;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** The keys of one request, as text and in UTF-8, and how they are acquired. */
final class Keys {
    private static final int SHOWN = 3;

    final String[] text;
    final byte[][] utf8;
    /** The operation: Codes.ACQUIRE for one key, ACQUIRE_MANY for all of them, ACQUIRE_ANY for one of them. */
    final int op;
    /** The number of permits of the semaphore; 0 for locks. */
    final int permits;

    private Keys(int op, int permits, String... text) {
        this.text = text;
        this.utf8 = new byte[text.length][];
        for (int i = 0; i < text.length; i++) {
            utf8[i] = encode(text[i]);
        }
        this.op = op;
        this.permits = permits;
    }

    static Keys of(String key) {
        return new Keys(Codes.ACQUIRE, 0, key);
    }

    /** Returns the keys for a permit of the semaphore of a key, which has 1 to 10,000. */
    static Keys permit(String key, int permits) {
        Keys one = new Keys(Codes.ACQUIRE, permits, key);
        if (permits < 1 || permits > Codes.MAX_PERMITS) {
            throw invalid("semaphore \"" + key + "\" of " + permits + " permits; 1 to 10000 are allowed");
        }
        return one;
    }

    /** Returns keys to be acquired together if they are 1 to 1,024 different ones. */
    static Keys all(Collection<String> keys) {
        return several(keys, Codes.ACQUIRE_MANY, Codes.MAX_KEYS);
    }

    /** Returns keys of which one is to be acquired if they are 1 to 64 different ones. */
    static Keys any(Collection<String> keys) {
        return several(keys, Codes.ACQUIRE_ANY, Codes.MAX_ANY);
    }

    private static Keys several(Collection<String> keys, int op, int max) {
        Set<String> seen = new HashSet<>();
        for (String key : Objects.requireNonNull(keys, "keys")) {
            if (!seen.add(key)) {
                throw invalid("key \"" + key + "\" is named twice");
            }
        }
        if (keys.isEmpty() || keys.size() > max) {
            throw invalid(keys.size() + " keys at once; 1 to " + max + " are allowed");
        }
        return new Keys(op, 0, keys.toArray(String[]::new));
    }

    /** Returns the keys at some positions. */
    Keys at(int[] positions) {
        return new Keys(op, permits, IntStream.of(positions).mapToObj(i -> text[i]).toArray(String[]::new));
    }

    /** Returns key in UTF-8 if it is valid: 1 to 512 bytes without control characters. */
    private static byte[] encode(String key) {
        Objects.requireNonNull(key, "key");
        for (int i = 0, c; i < key.length(); i += Character.charCount(c)) {
            c = key.codePointAt(i);
            if (Character.isISOControl(c)) {
                throw invalid("key has a control character");
            }
            if (c >= Character.MIN_SURROGATE && c <= Character.MAX_SURROGATE) { // it is not one of a pair
                throw invalid("key cannot be written as UTF-8");
            }
        }
        byte[] utf8 = key.getBytes(StandardCharsets.UTF_8);
        if (utf8.length < 1 || utf8.length > Codes.MAX_KEY) {
            throw invalid("key has " + utf8.length + " bytes; 1 to 512 are allowed");
        }
        return utf8;
    }

    private static LockException invalid(String why) {
        return new LockException(Code.INVALID, why);
    }

    /** Tells whether these are several keys of one request. */
    boolean several() {
        return op != Codes.ACQUIRE;
    }

    /** Returns their names in messages. */
    @Override
    public String toString() {
        String some = Stream.of(text).limit(SHOWN).map(k -> '"' + k + '"').collect(Collectors.joining(", "));
        return (permits > 0 ? "semaphore " : several() ? "locks " : "lock ") + some
                + (text.length > SHOWN ? " and " + (text.length - SHOWN) + " more" : "");
    }
}
