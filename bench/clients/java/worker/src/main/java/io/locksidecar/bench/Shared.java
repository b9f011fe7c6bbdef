package io.locksidecar.bench;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;

/** The page of harness.NewShared: who is inside a lock, who was last, with which fence. */
final class Shared {
    private static final VarHandle WORD =
            MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());
    private static final int INSIDE = 0;
    private static final int LAST = 64;
    private static final int FENCE = 128;

    private final ByteBuffer page;

    /** What one contender found when it entered. */
    record Seen(boolean handOver, boolean overlap, boolean fenceFault) {}

    Shared(String path) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(path, "rw")) {
            page = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, file.length());
        }
    }

    /** Is called by contender me, not 0, with the lock held; a fence of 0 is none. */
    Seen enter(long me, long fence) {
        boolean overlap = !WORD.compareAndSet(page, INSIDE, 0L, me);
        boolean handOver = (long) WORD.getAndSet(page, LAST, me) != me;
        boolean fault = fence != 0 && (long) WORD.getAndSet(page, FENCE, fence) >= fence;
        return new Seen(handOver, overlap, fault);
    }

    void leave(long me) {
        WORD.compareAndSet(page, INSIDE, me, 0L);
    }
}
