package io.locksidecar;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;

/**
 * The writing half of a connection. A caller that sends while no other thread writes, writes everything that is queued,
 * without blocking. It leaves what the socket does not accept at once to the reader. So no caller ever hangs in a
 * write, and none can be interrupted in one: only a blocking operation closes its channel when its thread is
 * interrupted, and this channel does not block.
 *
 * <p>The connection's lock guards everything, except what the thread that set writing has taken out.
 */
final class Outbox {
    /** Bounds the bytes that wait to be written. */
    static final int MOST = 64 << 20;
    /** The maximum size of a frame unless another is given: a key, two texts of hello, some numbers. */
    private static final int FRAME = 1024;
    /** How often one caller also writes for others, before it leaves that to the reader. */
    private static final int ROUNDS = 4;
    private static final int KEEP = 1 << 20;

    private final Conn conn;
    private final WritableByteChannel channel;

    private ByteBuffer out = ByteBuffer.allocateDirect(1 << 14);
    private ByteBuffer spare = ByteBuffer.allocateDirect(1 << 14);
    private ByteBuffer rest;
    private int begun;
    private boolean open;
    private boolean writing;
    /** How many callers the last frames that were read have woken. A hint, which may be read without the lock. */
    int crowd;
    /** The reader has to continue writing. */
    private boolean stuck;
    /** The error of writing, or null. */
    IOException failed;

    Outbox(Conn conn, WritableByteChannel channel) {
        this.conn = conn;
        this.channel = channel;
    }

    /** Tells whether so much waits to be written that no new request should be added. mu is held. */
    boolean full() {
        return out.position() + (rest == null ? 0 : rest.remaining()) > MOST;
    }

    /** Tells whether nothing was added since the last write. mu is held. */
    boolean isEmpty() {
        return out.position() == 0;
    }

    /**
     * Begins the frame of a request with so many fields, and returns the buffer for them. It takes so many bytes more than most.
     * mu is held.
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

    /** Removes a frame that was begun and not ended, for example after an Error. mu is held. */
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
     * Writes what is queued, unless another thread does so already. With gather it first lets other callers run that
     * the same read has woken, so that their requests are written together.
     */
    void flush(boolean gather) {
        boolean left = true; // also after an Error
        boolean virtual = gather && crowd > 1 && Wait.isVirtual(Thread.currentThread());
        if (virtual) {
            Thread.yield(); // not while others wait for it to write, because it might not run again for long
        }
        conn.mu.lock();
        try (conn.mu) {
            if (writing || out.position() == 0) {
                return;
            }
            writing = true;
            if (gather && crowd > 1 && !virtual) {
                conn.mu.unlock();
                Thread.yield();
                conn.mu.lock();
            }
            try {
                for (int i = 0; i < ROUNDS && left && rest == null; i++) {
                    left = once(take());
                }
            } finally {
                stuck = left; // only now, because mu was released meanwhile, and writing still belongs to this thread
                writing = left;
            }
        }
        if (left) {
            conn.wakeReader();
        }
    }

    /** Continues writing where callers stopped; true when the socket accepts no more. Only the reader calls it. mu is held. */
    boolean goOn() {
        boolean mine = stuck;
        while (stuck) {
            ByteBuffer b = rest == null ? take() : rest;
            rest = null;
            stuck = once(b);
            if (rest != null) {
                return true;
            }
        }
        writing &= !mine;
        return false;
    }

    private ByteBuffer take() {
        takeBack();
        ByteBuffer next = spare != null ? spare : ByteBuffer.allocateDirect(1 << 14);
        ByteBuffer b = out;
        out = next;
        spare = null;
        return b.flip();
    }

    /** Writes b as far as the socket accepts it, with mu released meanwhile; true when more is to be written. */
    private boolean once(ByteBuffer b) {
        IOException fault = failed;
        conn.mu.unlock();
        try {
            if (fault == null) {
                channel.write(b);
            }
        } catch (IOException e) {
            fault = e;
        } catch (RuntimeException | Error e) { // it is not known how much was sent
            fault = new IOException(e);
        } finally {
            conn.mu.lock();
        }
        if (fault != null) { // the reader ends the connection, because the daemon may have sent the reason
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
