package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;

/**
 * The part of MessagePack that the protocol uses, directly to and from a buffer.
 *
 * <p>Memory is allocated only for text that is really there, and not for what a header claims. A {@link
 * LockException.Code#BAD_FRAME} reports everything that cannot be read.
 */
final class Msgpack {
    /** The deepest level of a value; a payload's array is level 0. */
    static final int MAX_LEVEL = 8;

    private Msgpack() {}

    // ---- writing: the shortest form ----

    static void putArray(ByteBuffer b, int count) {
        if (count < 16) {
            b.put((byte) (0x90 | count));
        } else {
            sized(b, 0xdc - 1, Math.max(1, log(count)), count);
        }
    }

    static void putLong(ByteBuffer b, long v) {
        if (v >= -(1 << 5) && v < 1 << 7) {
            b.put((byte) v);
        } else if (v >= 0) {
            sized(b, 0xcc, log(v), v);
        } else {
            sized(b, 0xd0, log(~v << 1), v); // it takes as many bits as ~v, and one for the sign
        }
    }

    static void putText(ByteBuffer b, byte[] utf8) {
        if (utf8.length < 32) {
            b.put((byte) (0xa0 | utf8.length));
            for (byte one : utf8) { // the buffer's own way to copy calls into the virtual machine
                b.put(one);
            }
        } else {
            sized(b, 0xd9, log(utf8.length), utf8.length);
            b.put(utf8);
        }
    }

    /** Returns the binary logarithm of the number of bytes that v takes without a sign: 0 to 3. */
    private static int log(long v) {
        int bits = Long.SIZE - Long.numberOfLeadingZeros(v);
        return bits <= 8 ? 0 : bits <= 16 ? 1 : bits <= 32 ? 2 : 3;
    }

    /** Writes a number in 2^log bytes behind the type of that size. The types of one kind follow each other by size. */
    private static void sized(ByteBuffer b, int type, int log, long v) {
        b.put((byte) (type + log));
        switch (log) {
            case 0 -> b.put((byte) v);
            case 1 -> b.putShort((short) v);
            case 2 -> b.putInt((int) v);
            default -> b.putLong(v);
        }
    }

    // ---- reading: any width ----

    /** Reads an array's header and returns its count, after a check against the number of bytes left. */
    static int getArray(ByteBuffer b) {
        int t = head(b);
        if ((t & 0xf0) == 0x90) {
            return fits(b, t & 0x0f, 1);
        }
        if (t != 0xdc && t != 0xdd) {
            throw bad("not an array");
        }
        return fits(b, size(b, t - 0xdc + 1), 1);
    }

    /** Reads a number within 0 … 2^63 − 1. */
    static long getCount(ByteBuffer b) {
        long v = getLong(b);
        if (v < 0) {
            throw bad("number out of range");
        }
        return v;
    }

    /** Reads a number within −2^63 … 2^63 − 1. */
    static long getLong(ByteBuffer b) {
        int t = head(b);
        if (t < 0x80 || t >= 0xe0) {
            return (byte) t;
        }
        long v = switch (t) {
            case 0xcc, 0xcd, 0xce -> size(b, t - 0xcc);
            case 0xd0 -> need(b, 1).get();
            case 0xd1 -> need(b, 2).getShort();
            case 0xd2 -> need(b, 4).getInt();
            case 0xcf, 0xd3 -> need(b, 8).getLong();
            default -> throw bad("not a number");
        };
        if (v < 0 && t == 0xcf) {
            throw bad("number out of range");
        }
        return v;
    }

    /** Reads text, which must be UTF-8. */
    static String getText(ByteBuffer b) {
        int t = head(b);
        boolean small = (t & 0xe0) == 0xa0;
        if (!small && (t < 0xd9 || t > 0xdb)) {
            throw bad("not text");
        }
        int n = fits(b, small ? t & 0x1f : size(b, t - 0xd9), 1);
        byte[] utf8 = new byte[n];
        b.get(utf8);
        String text = new String(utf8, StandardCharsets.UTF_8);
        if (text.indexOf('\ufffd') >= 0) { // it replaces malformed bytes, or is there by itself
            try {
                StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8));
            } catch (CharacterCodingException e) {
                throw new LockException(Code.BAD_FRAME, "text is not UTF-8", e);
            }
        }
        return text;
    }

    /** Skips count values of any type at a level. */
    static void skip(ByteBuffer b, long count, int level) {
        for (long i = 0; i < count; i++) {
            skip(b, level);
        }
    }

    private static void skip(ByteBuffer b, int level) {
        if (level > MAX_LEVEL) {
            throw bad("nested too deeply");
        }
        int t = head(b);
        if (t < 0x80 || t >= 0xe0) {
            return;
        }
        if (t < 0x90) {
            skip(b, 2L * fits(b, t & 0x0f, 2), level + 1);
        } else if (t < 0xa0) {
            skip(b, fits(b, t & 0x0f, 1), level + 1);
        } else if (t < 0xc0) {
            pass(b, t & 0x1f);
        } else {
            switch (t) {
                case 0xc0, 0xc2, 0xc3 -> { }
                case 0xc4, 0xc5, 0xc6 -> pass(b, size(b, t - 0xc4));
                case 0xd9, 0xda, 0xdb -> pass(b, size(b, t - 0xd9));
                case 0xc7, 0xc8, 0xc9 -> pass(b, size(b, t - 0xc7) + 1);
                case 0xcc, 0xcd, 0xce, 0xcf -> pass(b, 1 << t - 0xcc);
                case 0xd0, 0xd1, 0xd2, 0xd3 -> pass(b, 1 << t - 0xd0);
                case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8 -> pass(b, 1 + (1 << t - 0xd4));
                case 0xca -> pass(b, 4);
                case 0xcb -> pass(b, 8);
                case 0xdc, 0xdd -> skip(b, fits(b, size(b, t - 0xdc + 1), 1), level + 1);
                case 0xde, 0xdf -> skip(b, 2L * fits(b, size(b, t - 0xde + 1), 2), level + 1);
                default -> throw bad("a type that is never used");
            }
        }
    }

    private static int head(ByteBuffer b) {
        return need(b, 1).get() & 0xff;
    }

    /** Reads a number without a sign in 2^log bytes, at most 4. */
    private static long size(ByteBuffer b, int log) {
        need(b, 1 << log);
        return switch (log) {
            case 0 -> b.get() & 0xff;
            case 1 -> b.getShort() & 0xffff;
            default -> b.getInt() & 0xffff_ffffL;
        };
    }

    /** Returns count if the bytes left may have so many entries of at least so many bytes. */
    private static int fits(ByteBuffer b, long count, int bytes) {
        if (count * bytes > b.remaining()) {
            throw bad("cut short");
        }
        return (int) count;
    }

    private static void pass(ByteBuffer b, long n) {
        b.position(b.position() + fits(b, n, 1));
    }

    private static ByteBuffer need(ByteBuffer b, int n) {
        if (b.remaining() < n) {
            throw bad("cut short");
        }
        return b;
    }

    private static LockException bad(String why) {
        return new LockException(Code.BAD_FRAME, why);
    }
}
