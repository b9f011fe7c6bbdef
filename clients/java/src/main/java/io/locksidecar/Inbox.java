package io.locksidecar;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ReadableByteChannel;

/** The reading half of a connection, which cuts the stream into payloads. Only the I/O thread uses it. */
final class Inbox {
    private static final int SIZE = 1 << 16;
    /** The first four bytes of an HTTP reply. */
    private static final int HTTP = 0x48545450;

    private final ReadableByteChannel channel;
    private ByteBuffer in = ByteBuffer.allocateDirect(SIZE);

    Inbox(ReadableByteChannel channel) {
        this.channel = channel;
    }

    /** Reads once and applies every whole frame; true while there may be more to read. */
    boolean read(Conn conn) throws IOException {
        int n = channel.read(in);
        if (n < 0) {
            throw new ConnectionLostException("the daemon closed the connection");
        }
        if (n > 0) {
            conn.heard();
        }
        boolean full = !in.hasRemaining();
        in.flip();
        while (in.remaining() >= 4) {
            int size = in.getInt(in.position());
            int most = conn.welcome().maxFrame();
            if (size == HTTP) {
                throw new ProtocolException(SocketPath.http(conn.link().path()));
            }
            if (size <= 0 || size > most) {
                throw new ProtocolException(
                        "frame of " + Integer.toUnsignedString(size) + " bytes, the limit is " + most);
            }
            if (in.remaining() - 4 < size) {
                break;
            }
            int begin = in.position() + 4;
            in.position(begin + size);
            conn.apply(in.slice(begin, size));
        }
        if (in.position() == 0 && in.limit() == in.capacity()) { // what has arrived is kept, and as much again fits
            in = ByteBuffer.allocateDirect(2 * in.capacity()).put(in);
        } else {
            in.compact();
        }
        return full;
    }
}
