package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.io.IOException;
import java.net.ConnectException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;

/**
 * The one thread of a client: it connects, runs the timers, and is the reader of the connection while no caller is; see
 * {@link Conn}. No code of the user runs on it, and it waits only for the selector or for a caller that reads.
 */
final class IoThread extends Thread {
    /** How long the thread stays alive without anything to do, in nanoseconds. */
    private static final long LINGER = 1_000_000_000;

    private final Link link;
    private volatile Selector selector;
    private volatile boolean poked;
    /** The pause after the next failed attempt, in milliseconds. */
    private long pause = 10;
    /** System.nanoTime of the next attempt. */
    private long next = System.nanoTime();

    IoThread(Link link) {
        super("locksidecar-io");
        setDaemon(true);
        this.link = link;
    }

    /** Makes this thread, and a caller that reads, check for work. Before it has a selector, this thread checks by itself. */
    void wakeup() {
        Selector s = selector;
        if (s != null) {
            s.wakeup();
        }
        poke();
    }

    /** Makes this thread check for work if it does not read. */
    void poke() {
        poked = true; // the permit of unpark is not enough, because a lock may use it up
        LockSupport.unpark(this);
    }

    /** Does nothing. Code that interrupts a whole thread group does not mean this thread, whose waits would then end at once. */
    @Override
    public void interrupt() {}

    @Override
    public void run() {
        try (Selector s = Selector.open()) {
            selector = s;
            while (wanted(s)) {
                try {
                    connect(s);
                } catch (RuntimeException | Error e) {
                    Link.LOG.log(System.Logger.Level.ERROR, "locksidecar's I/O thread failed", e);
                    link.fail(new UnavailableException(Code.CLOSED, "the client failed: " + e, e), "connection");
                }
            }
        } catch (IOException | RuntimeException | Error e) {
            link.ended();
            link.fail(new UnavailableException(Code.UNAVAILABLE, "the client cannot wait for its socket: " + e, e), "connection");
        }
    }

    /** Waits for a short time for something to do. */
    private boolean wanted(Selector s) throws IOException {
        if (!link.busy(false) && !link.closed) {
            s.select(LINGER / 1_000_000);
        }
        return link.busy(true);
    }

    /** Makes one attempt, if a connection is wanted and it is time, and serves the connection to its end. */
    private void connect(Selector s) throws IOException {
        long timer = link.timers(LINGER);
        long untilDial = link.untilDial(next);
        if (untilDial > 0) {
            s.select(Math.min(timer, untilDial) / 1_000_000 + 1);
            return;
        }
        try (SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX)) {
            serve(open(channel, s));
        } catch (IOException | LockException e) {
            LockException why = e instanceof LockException l ? l : new UnavailableException(
                    Code.UNAVAILABLE, "no connection to " + link.setup.path() + ": " + e.getMessage(), e);
            double jittered = pause * (0.5 + ThreadLocalRandom.current().nextDouble() / 2);
            next = System.nanoTime() + (long) (jittered * 1_000_000);
            pause = Math.min(250, 2 * pause);
            link.failed(why, next, !(why instanceof UnavailableException));
        }
        s.selectNow(); // the selector closes the channel's descriptor only in a selection
    }

    /** Connects and says hello. After the welcome, the connection belongs to the link. */
    private Conn open(SocketChannel channel, Selector s) throws IOException {
        channel.configureBlocking(false);
        try {
            if (!channel.connect(UnixDomainSocketAddress.of(link.setup.path()))) {
                throw new UnavailableException(
                        Code.UNAVAILABLE, "the daemon at " + link.setup.path() + " takes no more connections");
            }
        } catch (IOException | IllegalArgumentException e) {
            throw new UnavailableException(Code.UNAVAILABLE, refused(link.setup.path(), e), e);
        }
        Conn c = new Conn(link, channel, channel.register(s, SelectionKey.OP_READ), this);
        long limit = System.nanoTime() + link.setup.timeout();
        c.requests.hello(clip(link.setup.name()), clip(link.setup.label()));
        while (!c.incoming.welcomed) {
            long left = limit - System.nanoTime();
            if (link.closed || c.dead != null || left <= 0) {
                throw link.closed ? link.closing() : c.dead != null ? c.dead : link.silent();
            }
            c.turn(Math.min(left, link.timers(left)));
        }
        pause = 10;
        return c;
    }

    /** Returns the part of a name or label that fits: 128 bytes of UTF-8. */
    private static byte[] clip(String name) {
        byte[] utf8 = name.getBytes(StandardCharsets.UTF_8);
        int n = Math.min(utf8.length, Codes.MAX_NAME);
        while (n < utf8.length && (utf8[n] & 0xc0) == 0x80) {
            n--; // not within a character
        }
        return Arrays.copyOf(utf8, n);
    }

    /** Returns the reason why there is no connection. */
    private static String refused(Path path, Exception e) {
        if (e instanceof ConnectException || Files.notExists(path)) {
            return "no daemon at " + path + ": " + e.getMessage() + "; " + SocketPath.hint(path);
        }
        return (Files.isWritable(path) ? "no connection to " : "this user may not connect to ") + path + ": "
                + e.getMessage();
    }

    /** Serves a connection to its end. */
    private void serve(Conn c) {
        link.connected(c);
        while (c.dead == null) {
            poked = false;
            long timer = link.timers(LINGER);
            long rest = c.take();
            if (rest == 0) {
                c.turn(timer);
            } else if (!poked) {
                LockSupport.parkNanos(this, Math.min(rest, timer));
            }
        }
        c.awaitReader(); // until then a caller may read the channel, which connect closes next
    }

    /** The path of the daemon's socket, in the order of PROTOCOL.md, section 2. */
    static final class SocketPath {
        static final String VARIABLE = "LOCKSIDECAR_SOCKET";
        private static final String SYSTEM = "/run/locksidecar/locksidecar.sock";
        /** The path of the admin socket is the path of the socket for locks, plus this. */
        private static final String ADMIN = ".admin";

        private SocketPath() {}

        static Path byDefault() {
            return byDefault(System.getenv(), root());
        }

        static Path byDefault(Map<String, String> env, boolean root) {
            String named = env.getOrDefault(VARIABLE, "");
            String runtime = root ? "" : env.getOrDefault("XDG_RUNTIME_DIR", "");
            Path unnamed = runtime.isEmpty() ? Path.of(SYSTEM) : Path.of(runtime, "locksidecar", "locksidecar.sock");
            return named.isEmpty() ? unnamed : Path.of(named);
        }

        /** Returns advice for the case that there is no daemon at path. */
        static String hint(Path path) {
            String locks = locks(path);
            if (locks != null) {
                return "this is the name of an admin socket; the socket for locks is " + locks;
            }
            if (Files.exists(Path.of(path + ADMIN))) {
                return "only an admin socket is there, " + path + ADMIN;
            }
            return "start one with 'locksidecar serve', or name its socket with Sidecar.builder().socket(...) or " + VARIABLE;
        }

        /** Returns the error for the socket at path, which speaks HTTP and is not the one for locks. */
        static String http(Path path) {
            String locks = locks(path);
            return locks != null ? "this is the admin socket; the socket for locks is " + locks
                    : "this socket speaks HTTP, as an admin socket does, not the protocol for locks";
        }

        /** Returns the path of the socket for locks that belongs to an admin socket; null if path does not name one. */
        private static String locks(Path path) {
            String s = path.toString();
            return s.endsWith(ADMIN) ? s.substring(0, s.length() - ADMIN.length()) : null;
        }

        /** Tells whether this process runs as root, without an additional module. */
        private static boolean root() {
            try {
                return Integer.valueOf(0).equals(Files.getAttribute(Path.of("/proc/self"), "unix:uid"));
            } catch (IOException | UnsupportedOperationException | IllegalArgumentException e) {
                return "root".equals(System.getProperty("user.name"));
            }
        }
    }
}
