package io.locksidecar.bench;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;

/** The board of load.NewBoard: for each key, the contender inside, the one that was last inside, and its fence. */
final class Board {
    private static final VarHandle WORD =
            MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());
    private static final int SLOT = 256;
    private static final int INSIDE = 0;
    private static final int LAST = 64;
    private static final int FENCE = 128;
    private static final int EXCLUSIVE = 136;
    private static final int READERS = 192;

    private final ByteBuffer memory;

    /** What one contender found when it entered. */
    record Seen(boolean handoff, boolean overlap, boolean fenceFault) {}

    Board(String path) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(path, "rw")) {
            memory = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, file.length());
        }
    }

    /** Is called by contender me, not 0, while it holds the lock. A fence of 0 means that there is none. */
    Seen enter(int key, long me, long fence, boolean shared) {
        int at = key * SLOT;
        boolean overlap;
        boolean fault;
        if (shared) {
            WORD.getAndAdd(memory, at + READERS, 1L);
            overlap = (long) WORD.getVolatile(memory, at + INSIDE) != 0;
            fault = fence != 0 && fence <= (long) WORD.getVolatile(memory, at + EXCLUSIVE);
            raise(at + FENCE, fence);
        } else {
            overlap = !WORD.compareAndSet(memory, at + INSIDE, 0L, me);
            overlap |= (long) WORD.getVolatile(memory, at + READERS) != 0;
            fault = fence != 0 && (long) WORD.getAndSet(memory, at + FENCE, fence) >= fence;
            WORD.setVolatile(memory, at + EXCLUSIVE, fence);
        }
        return new Seen((long) WORD.getAndSet(memory, at + LAST, me) != me, overlap, fault);
    }

    private void raise(int at, long fence) {
        for (long known = (long) WORD.getVolatile(memory, at); fence > known; ) {
            known = (long) WORD.compareAndExchange(memory, at, known, fence);
        }
    }

    /** Is called before the lock is released. */
    void leave(int key, long me, boolean shared) {
        int at = key * SLOT;
        if (shared) {
            WORD.getAndAdd(memory, at + READERS, -1L);
        } else {
            WORD.compareAndSet(memory, at + INSIDE, me, 0L);
        }
    }
}
