package io.locksidecar;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;

/**
 * The writing half of a connection. A caller that sends while no other thread writes also writes everything that is queued,
 * without blocking. If the socket does not accept everything at once, the reader writes the rest. So no caller ever hangs in a
 * write. Nor does an interrupt of a caller close the channel: that happens only in blocking operations.
 *
 * <p>The connection's lock guards everything, except the buffer that the thread that set writing has taken out.
 */
final class Outbox {
    /** The number of waiting bytes above which new requests are refused. */
    static final int MAX = 64 << 20;
    /** The maximum size of a frame unless another is given: a key, two texts of hello, some numbers. */
    private static final int FRAME = 1024;
    /** How many writes one caller makes, for itself and others, before it leaves the rest to the reader. */
    private static final int ROUNDS = 4;
    /** The largest buffer that is used again, in bytes. */
    private static final int KEEP = 1 << 20;

    private final Conn conn;
    private final WritableByteChannel channel;

    /** The frames that no thread has begun to write. */
    private ByteBuffer out = ByteBuffer.allocateDirect(1 << 14);
    /** The next out; null if both buffers are in use. */
    private ByteBuffer spare = ByteBuffer.allocateDirect(1 << 14);
    /** The bytes that the socket has not accepted; null if there are none. */
    private ByteBuffer rest;
    /** The position in out of the frame that is open. */
    private int begun;
    /** A frame was begun and not ended. */
    private boolean open;
    /** A thread writes, or the reader has to. */
    private boolean writing;
    /** How many callers the last frames that were read have woken. A hint, which may be read without the lock. */
    int woken;
    /** The reader has to continue writing. */
    private boolean stuck;
    /** The error that writing has ended with, or null. */
    IOException failed;

    Outbox(Conn conn, WritableByteChannel channel) {
        this.conn = conn;
        this.channel = channel;
    }

    /** Tells whether so much waits to be written that no new request should be added. mu is held. */
    boolean full() {
        return out.position() + (rest == null ? 0 : rest.remaining()) > MAX;
    }

    /** Tells whether nothing was added since the last write. mu is held. */
    boolean isEmpty() {
        return out.position() == 0;
    }

    /**
     * Begins the frame of a request with a number of fields, and returns the buffer for them. The frame may take {@code more}
     * bytes above the usual maximum. mu is held.
     */
    ByteBuffer begin(int op, long id, int fields, int more) {
        takeBack();
        int room = FRAME + more;
        if (out.remaining() < room) {
            ByteBuffer larger = ByteBuffer.allocateDirect(Math.max(2 * out.capacity(), out.position() + room));
            out.flip();
            out = larger.put(out);
        }
        begun = out.position();
        open = true;
        out.position(begun + 4);
        Msgpack.putArray(out, 2 + fields);
        Msgpack.putLong(out, op);
        Msgpack.putLong(out, id);
        return out;
    }

    /** Returns the number of payload bytes of the frame that was begun. mu is held. */
    int length() {
        return out.position() - begun - 4;
    }

    /** Ends the frame that was begun. mu is held. */
    void end() {
        out.putInt(begun, length());
        open = false;
    }

    /** Removes a frame that was begun and not ended, for example because of an Error. mu is held. */
    void takeBack() {
        if (open) {
            out.position(begun);
            open = false;
        }
    }

    /** Tells whether the reader has to write, or to end the connection. mu is held. */
    boolean needsReader() {
        return stuck || failed != null;
    }

    /**
     * Writes the queued frames, unless another thread writes. With {@code gather} it first lets the other callers run that the
     * same read has woken, so that all their requests are written together.
     */
    void flush(boolean gather) {
        boolean left = true; // also after an Error
        boolean virtual = gather && woken > 1 && Wait.isVirtual(Thread.currentThread());
        if (virtual) {
            Thread.yield(); // before it sets writing: it may not run again for long, and others would wait for it
        }
        conn.mu.lock();
        try (conn.mu) {
            if (writing || out.position() == 0) {
                return;
            }
            writing = true;
            if (gather && woken > 1 && !virtual) {
                conn.mu.unlock();
                Thread.yield();
                conn.mu.lock();
            }
            try {
                for (int i = 0; i < ROUNDS && left && rest == null; i++) {
                    left = writeOnce(take());
                }
            } finally {
                stuck = left; // not before, because mu was released in between, and this thread was still writing
                writing = left;
            }
        }
        if (left) {
            conn.wakeReader();
        }
    }

    /** Continues writing where callers stopped; true if the socket accepts no more. Only the reader calls it. mu is held. */
    boolean resume() {
        boolean mine = stuck;
        while (stuck) {
            ByteBuffer b = rest == null ? take() : rest;
            rest = null;
            stuck = writeOnce(b);
            if (rest != null) {
                return true;
            }
        }
        writing &= !mine;
        return false;
    }

    /** Takes the queued frames out, to be written. mu is held. */
    private ByteBuffer take() {
        takeBack();
        ByteBuffer next = spare != null ? spare : ByteBuffer.allocateDirect(1 << 14);
        ByteBuffer b = out;
        out = next;
        spare = null;
        return b.flip();
    }

    /** Writes b as far as the socket accepts it, and releases mu meanwhile; true if there is more to write. */
    private boolean writeOnce(ByteBuffer b) {
        IOException fault = failed;
        conn.mu.unlock();
        try {
            if (fault == null) {
                channel.write(b);
            }
        } catch (IOException e) {
            fault = e;
        } catch (RuntimeException | Error e) { // nobody knows how much was sent, so the connection must end
            fault = new IOException(e);
        } finally {
            conn.mu.lock();
        }
        if (fault != null) { // the reader ends the connection: it may still read the reason from the daemon
            failed = fault;
            b.clear();
            out.clear();
            conn.wakeReader();
        } else if (b.hasRemaining()) {
            rest = b;
            return true;
        }
        if (spare == null && b.capacity() <= KEEP) {
            spare = b.clear();
        }
        return out.position() > 0;
    }
}
