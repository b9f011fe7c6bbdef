package io.locksidecar;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Objects;

/** A lock's name, as text and in UTF-8. */
record Key(String text, byte[] utf8) {

    /** Returns key if it is valid: 1 to 512 bytes of UTF-8 without control characters. */
    static Key of(String key) {
        Objects.requireNonNull(key, "key");
        byte[] utf8;
        try {
            ByteBuffer b = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(key));
            utf8 = new byte[b.remaining()];
            b.get(utf8);
        } catch (CharacterCodingException e) {
            throw new InvalidException("key cannot be written as UTF-8");
        }
        if (utf8.length < 1 || utf8.length > Codes.MAX_KEY) {
            throw new InvalidException("key has " + utf8.length + " bytes; 1 to 512 are allowed");
        }
        if (key.chars().anyMatch(c -> c < 0x20 || c >= 0x7f && c < 0xa0)) {
            throw new InvalidException("key has a control character");
        }
        return new Key(key, utf8);
    }

    /** Returns the part of a name or label that fits: 128 bytes of UTF-8. */
    static byte[] clip(String name) {
        byte[] utf8 = name.getBytes(StandardCharsets.UTF_8);
        int n = Math.min(utf8.length, Codes.MAX_NAME);
        while (n < utf8.length && (utf8[n] & 0xc0) == 0x80) {
            n--; // not within a character
        }
        return java.util.Arrays.copyOf(utf8, n);
    }
}
