package io.locksidecar;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The writing half of a connection. Whoever sends and finds nobody writing writes everything that has
 * gathered, without blocking; what the socket does not take at once is left to the I/O thread. So no
 * caller ever hangs in a write, and none can be interrupted in one: only an operation that blocks
 * closes its channel when its thread is interrupted, and this channel is a non-blocking one.
 *
 * <p>Everything is guarded by the connection's lock, but for what the one who set writing has taken out.
 */
final class Outbox {
    /** Bounds what waits to be written. */
    static final int MOST = 64 << 20;
    /** No frame is larger unless it says so: a key, two texts of hello, some numbers. */
    private static final int FRAME = 1024;
    /** How often one caller writes for the others too before it leaves that to the I/O thread. */
    private static final int ROUNDS = 4;
    private static final int KEEP = 1 << 20;

    private final ReentrantLock mu;
    private final WritableByteChannel channel;
    private final Runnable wakeup;

    private ByteBuffer out = ByteBuffer.allocateDirect(1 << 14);
    private ByteBuffer spare = ByteBuffer.allocateDirect(1 << 14);
    private ByteBuffer rest;
    private int begun;
    private boolean open;
    private boolean writing;
    private int crowd;
    /** The I/O thread has to go on writing. */
    private boolean stuck;
    private IOException failed;

    Outbox(ReentrantLock mu, WritableByteChannel channel, Runnable wakeup) {
        this.mu = mu;
        this.channel = channel;
        this.wakeup = wakeup;
    }

    /** Tells whether so much waits to be written that nothing new should be asked for; mu is held. */
    boolean full() {
        return out.position() + (rest == null ? 0 : rest.remaining()) > MOST;
    }

    /** Begins a frame whose array has count entries, and returns where to put them; mu is held. */
    ByteBuffer begin(int count) {
        return begin(count, 0);
    }

    /** The same for a frame that takes so many bytes more than most. */
    ByteBuffer begin(int count, int more) {
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
        Msgpack.putArray(out, count);
        return out;
    }

    /** Returns how many bytes of payload the frame that was begun has; mu is held. */
    int length() {
        return out.position() - begun - 4;
    }

    /** Ends the frame that was begun; mu is held. */
    void end() {
        out.putInt(begun, length());
        open = false;
    }

    /** Takes back a frame that was begun and not ended, by an Error say; mu is held. */
    void takeBack() {
        if (open) {
            out.position(begun);
            open = false;
        }
    }

    /** Says how many callers the last frames that were read have woken; mu is held. */
    void crowd(int woken) {
        crowd = woken;
    }

    /**
     * Writes what has gathered, unless somebody does already. With gather it first lets others run whom the same
     * read has woken, so that their requests go along.
     */
    void flush(boolean gather) {
        boolean left = true; // should an Error pass, too
        mu.lock();
        try {
            if (writing || out.position() == 0) {
                return;
            }
            writing = true;
            if (gather && crowd > 1) {
                mu.unlock();
                Thread.yield();
                mu.lock();
            }
            try {
                for (int i = 0; i < ROUNDS && left && rest == null; i++) {
                    left = once(take());
                }
            } finally {
                stuck = left; // only now: mu was given back meanwhile, and writing is still ours
                writing = left;
            }
        } finally {
            mu.unlock();
        }
        if (left) {
            wakeup.run();
        }
    }

    /** Goes on writing where callers left off, on the I/O thread; true when the socket takes no more. */
    boolean goOn() {
        mu.lock();
        try {
            if (!stuck) {
                return false;
            }
            while (stuck) {
                ByteBuffer b = rest == null ? take() : rest;
                rest = null;
                stuck = once(b);
                if (rest != null) {
                    return true;
                }
            }
            writing = false;
            return false;
        } finally {
            mu.unlock();
        }
    }

    /** Returns what writing failed with, or null; mu is held. */
    IOException failed() {
        return failed;
    }

    private ByteBuffer take() {
        takeBack();
        ByteBuffer next = spare != null ? spare : ByteBuffer.allocateDirect(1 << 14);
        ByteBuffer b = out;
        out = next;
        spare = null;
        return b.flip();
    }

    /** Writes b as far as the socket takes it, mu being given back meanwhile; true when more is to be written. */
    private boolean once(ByteBuffer b) {
        IOException fault = failed;
        mu.unlock();
        try {
            if (fault == null) {
                channel.write(b);
            }
        } catch (IOException e) {
            fault = e;
        } catch (RuntimeException | Error e) { // how much went out is not known
            fault = new IOException(e);
        } finally {
            mu.lock();
        }
        if (fault != null) { // the reader ends the connection: the daemon may have said why
            failed = fault;
            b.clear();
            out.clear();
            wakeup.run();
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
