package io.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;

import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.util.List;

/** A scripted daemon: the test reads each request and sends each reply. */
final class Peer implements AutoCloseable {
    static final long FENCE = 1_795_000_000_000_000L << 10;

    private final Path dir = Daemon.directory();
    final Path path = dir.resolve("s");
    private final ServerSocketChannel listener;
    private Stream stream;
    private long session;

    /** One end of a connection, with complete messages. */
    private record Stream(SocketChannel channel) {
        List<?> read() throws IOException {
            ByteBuffer payload = payload();
            return payload == null ? null : (List<?>) Values.get(payload);
        }

        private ByteBuffer payload() throws IOException {
            ByteBuffer head = fill(4);
            return head == null ? null : fill(head.getInt());
        }

        private ByteBuffer fill(int n) throws IOException {
            ByteBuffer b = ByteBuffer.allocate(n);
            while (b.hasRemaining()) {
                if (channel.read(b) < 0) {
                    return null;
                }
            }
            return b.flip();
        }

        void write(byte[] bytes) throws IOException {
            ByteBuffer b = ByteBuffer.wrap(bytes);
            while (b.hasRemaining()) {
                channel.write(b);
            }
        }
    }

    Peer() {
        try {
            listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
            listener.bind(UnixDomainSocketAddress.of(path));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public void close() {
        hangUp();
        try {
            listener.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        Daemon.delete(dir);
    }

    void hangUp() {
        try {
            if (stream != null) {
                stream.channel.close();
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        stream = null;
    }

    /** Makes further writes of the client fail. It can still read. */
    void readNoMore() throws IOException {
        stream.channel.shutdownInput();
    }

    void accept() {
        hangUp();
        try {
            stream = new Stream(listener.accept());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Accepts and answers hello. The daemon's clock is so many milliseconds ahead. */
    void welcome(long ahead, Object... namespace) {
        accept();
        assertEquals(List.of(1L, 1L, 1L, 1L), expect(Codes.HELLO).subList(0, 4));
        List<?> spaces = List.of(namespace.length > 0 ? List.of(namespace) : List.of("", "embedded", "linearizable"));
        say(0, 1, 1, ++session, millis() + ahead, 65536, 100, 30000, 86400000, 1, spaces, "test");
    }

    void welcome() {
        welcome(0);
    }

    /** Returns the next request; null at the end. */
    List<?> read() {
        try {
            return stream.read();
        } catch (IOException e) {
            return null; // reset
        }
    }

    /** Returns the next request as it arrived, including its header. */
    byte[] frame() {
        try {
            ByteBuffer payload = stream.payload();
            assertNotNull(payload, "the connection has ended");
            return ByteBuffer.allocate(4 + payload.capacity()).putInt(payload.capacity()).put(payload).array();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Returns the next request, which must have this op. Answers pings that come before it. */
    List<?> expect(int op) {
        List<?> m = read();
        while (op != Codes.PING && m != null && m.get(0).equals((long) Codes.PING)) {
            say(0, m.get(1), 1);
            m = read();
        }
        assertNotNull(m, "the connection has ended; op " + op + " was expected");
        assertEquals((long) op, m.get(0), m::toString);
        return m;
    }

    void say(Object... values) {
        raw(Values.frame(values));
    }

    void raw(byte[] bytes) {
        try {
            stream.write(bytes);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Answers an acquire with a grant that is valid for left milliseconds. */
    List<?> grant(long left, long fence, long end, long ahead) {
        List<?> q = expect(Codes.ACQUIRE);
        say(0, q.get(1), fence, left, millis() + ahead + left, 1, end, 0);
        return q;
    }

    List<?> grant(long left) {
        return grant(left, FENCE, 0, 0);
    }

    List<?> released() {
        List<?> q = expect(Codes.RELEASE);
        say(0, q.get(1), 0);
        return q;
    }

    void pong() {
        say(0, expect(Codes.PING).get(1), 1);
    }

    static long millis() {
        return BootClock.SYSTEM.now() / 1_000_000;
    }

    /** A connection to a real daemon, without the client. */
    static final class Raw implements AutoCloseable {
        private final Stream stream;
        private long ids;

        Raw(Path path) {
            try {
                stream = new Stream(SocketChannel.open(UnixDomainSocketAddress.of(path)));
                stream.write(Values.frame(1, ++ids, 1, 1, "raw", ""));
                stream.read();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        /** Sends a request, and returns the reply. Pushes are skipped. */
        List<?> ask(int op, Object... fields) {
            Object[] all = new Object[fields.length + 2];
            all[0] = op;
            all[1] = ++ids;
            System.arraycopy(fields, 0, all, 2, fields.length);
            try {
                stream.write(Values.frame(all));
                while (true) {
                    List<?> m = stream.read();
                    if (m == null) {
                        throw new EOFException();
                    }
                    if (m.get(1).equals(ids)) {
                        return m;
                    }
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        @Override
        public void close() {
            try {
                stream.channel.close();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }
}
