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
        } else if (count < 1 << 16) {
            b.put((byte) 0xdc).putShort((short) count);
        } else {
            b.put((byte) 0xdd).putInt(count);
        }
    }

    static void putLong(ByteBuffer b, long v) {
        if (v >= 0) {
            if (v < 1 << 7) {
                b.put((byte) v);
            } else if (v < 1 << 8) {
                b.put((byte) 0xcc).put((byte) v);
            } else if (v < 1 << 16) {
                b.put((byte) 0xcd).putShort((short) v);
            } else if (v < 1L << 32) {
                b.put((byte) 0xce).putInt((int) v);
            } else {
                b.put((byte) 0xcf).putLong(v);
            }
        } else if (v >= -(1 << 5)) {
            b.put((byte) v);
        } else if (v >= Byte.MIN_VALUE) {
            b.put((byte) 0xd0).put((byte) v);
        } else if (v >= Short.MIN_VALUE) {
            b.put((byte) 0xd1).putShort((short) v);
        } else if (v >= Integer.MIN_VALUE) {
            b.put((byte) 0xd2).putInt((int) v);
        } else {
            b.put((byte) 0xd3).putLong(v);
        }
    }

    static void putText(ByteBuffer b, byte[] utf8) {
        int n = utf8.length;
        if (n < 32) {
            b.put((byte) (0xa0 | n));
        } else if (n < 1 << 8) {
            b.put((byte) 0xd9).put((byte) n);
        } else if (n < 1 << 16) {
            b.put((byte) 0xda).putShort((short) n);
        } else {
            b.put((byte) 0xdb).putInt(n);
        }
        b.put(utf8);
    }

    // ---- reading: any width ----

    /** Reads an array's header and returns its count, after a check against the number of bytes left. */
    static int getArray(ByteBuffer b) {
        int t = head(b);
        if ((t & 0xf0) == 0x90) {
            return fits(b, t & 0x0f, 1);
        }
        return switch (t) {
            case 0xdc -> fits(b, size(b, 2), 1);
            case 0xdd -> fits(b, size(b, 4), 1);
            default -> throw new LockException(Code.BAD_FRAME, "not an array");
        };
    }

    /** Reads a number within 0 … 2^63 − 1. */
    static long getCount(ByteBuffer b) {
        long v = getLong(b);
        if (v < 0) {
            throw new LockException(Code.BAD_FRAME, "number out of range");
        }
        return v;
    }

    /** Reads a number within −2^63 … 2^63 − 1. */
    static long getLong(ByteBuffer b) {
        int t = head(b);
        if (t < 0x80 || t >= 0xe0) {
            return (byte) t;
        }
        switch (t) {
            case 0xcc:
                return need(b, 1).get() & 0xff;
            case 0xcd:
                return need(b, 2).getShort() & 0xffff;
            case 0xce:
                return need(b, 4).getInt() & 0xffff_ffffL;
            case 0xcf:
                long v = need(b, 8).getLong();
                if (v < 0) {
                    throw new LockException(Code.BAD_FRAME, "number out of range");
                }
                return v;
            case 0xd0:
                return need(b, 1).get();
            case 0xd1:
                return need(b, 2).getShort();
            case 0xd2:
                return need(b, 4).getInt();
            case 0xd3:
                return need(b, 8).getLong();
            default:
                throw new LockException(Code.BAD_FRAME, "not a number");
        }
    }

    /** Reads text, which must be UTF-8. */
    static String getText(ByteBuffer b) {
        int t = head(b);
        int n;
        if ((t & 0xe0) == 0xa0) {
            n = fits(b, t & 0x1f, 1);
        } else {
            n = switch (t) {
                case 0xd9 -> fits(b, size(b, 1), 1);
                case 0xda -> fits(b, size(b, 2), 1);
                case 0xdb -> fits(b, size(b, 4), 1);
                default -> throw new LockException(Code.BAD_FRAME, "not text");
            };
        }
        byte[] utf8 = new byte[n];
        b.get(utf8);
        String text = new String(utf8, StandardCharsets.UTF_8);
        if (text.indexOf('\ufffd') >= 0) { // it replaces malformed bytes, or is there by itself
            check(utf8);
        }
        return text;
    }

    private static void check(byte[] utf8) {
        try {
            StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8));
        } catch (CharacterCodingException e) {
            throw new LockException(Code.BAD_FRAME, "text is not UTF-8", e);
        }
    }

    /** Skips count values of any type at a level. */
    static void skip(ByteBuffer b, long count, int level) {
        for (long i = 0; i < count; i++) {
            skip(b, level);
        }
    }

    private static void skip(ByteBuffer b, int level) {
        if (level > MAX_LEVEL) {
            throw new LockException(Code.BAD_FRAME, "nested too deeply");
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
                case 0xc4, 0xd9 -> pass(b, size(b, 1));
                case 0xc5, 0xda -> pass(b, size(b, 2));
                case 0xc6, 0xdb -> pass(b, size(b, 4));
                case 0xc7 -> pass(b, size(b, 1) + 1);
                case 0xc8 -> pass(b, size(b, 2) + 1);
                case 0xc9 -> pass(b, size(b, 4) + 1);
                case 0xcc, 0xd0 -> pass(b, 1);
                case 0xcd, 0xd1, 0xd4 -> pass(b, 2);
                case 0xd5 -> pass(b, 3);
                case 0xca, 0xce, 0xd2 -> pass(b, 4);
                case 0xd6 -> pass(b, 5);
                case 0xcb, 0xcf, 0xd3 -> pass(b, 8);
                case 0xd7 -> pass(b, 9);
                case 0xd8 -> pass(b, 17);
                case 0xdc -> skip(b, fits(b, size(b, 2), 1), level + 1);
                case 0xdd -> skip(b, fits(b, size(b, 4), 1), level + 1);
                case 0xde -> skip(b, 2L * fits(b, size(b, 2), 2), level + 1);
                case 0xdf -> skip(b, 2L * fits(b, size(b, 4), 2), level + 1);
                default -> throw new LockException(Code.BAD_FRAME, "a type that is never used");
            }
        }
    }

    private static int head(ByteBuffer b) {
        return need(b, 1).get() & 0xff;
    }

    private static long size(ByteBuffer b, int width) {
        need(b, width);
        return switch (width) {
            case 1 -> b.get() & 0xff;
            case 2 -> b.getShort() & 0xffff;
            default -> b.getInt() & 0xffff_ffffL;
        };
    }

    /** Returns count if the bytes left may have so many entries of at least so many bytes. */
    private static int fits(ByteBuffer b, long count, int bytes) {
        if (count * bytes > b.remaining()) {
            throw new LockException(Code.BAD_FRAME, "cut short");
        }
        return (int) count;
    }

    private static void pass(ByteBuffer b, long n) {
        b.position(b.position() + fits(b, n, 1));
    }

    private static ByteBuffer need(ByteBuffer b, int n) {
        if (b.remaining() < n) {
            throw new LockException(Code.BAD_FRAME, "cut short");
        }
        return b;
    }
}
