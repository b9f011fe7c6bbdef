package io.locksidecar;

import java.io.IOException;
import java.net.ConnectException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ThreadLocalRandom;

/**
 * The one thread of a client: it connects, reads, writes what callers could not write, and runs the timers. No code of
 * the user runs on it, and it waits only for the selector.
 */
final class IoThread extends Thread {
    private static final System.Logger LOG = System.getLogger("io.locksidecar");
    /** Maximum number of reads before the rest of the I/O thread's work. */
    private static final int READS = 16;
    /** Milliseconds for which the thread without a connection waits for the next request for one. */
    private static final long LINGER = 1000;

    private final Link link;
    private volatile Selector selector;
    /** Milliseconds between attempts that fail. */
    private long pause = 10;
    /** System.nanoTime of the next attempt. */
    private long next = System.nanoTime();

    IoThread(Link link) {
        super("locksidecar-io");
        setDaemon(true);
        this.link = link;
    }

    /** Makes it check for work. Before there is a selector, nothing is missed, because it checks first. */
    void wakeup() {
        Selector s = selector;
        if (s != null) {
            s.wakeup();
        }
    }

    @Override
    public void run() {
        try (Selector s = Selector.open()) {
            selector = s;
            while (wanted(s)) {
                try {
                    connect(s);
                } catch (RuntimeException | Error e) {
                    LOG.log(System.Logger.Level.ERROR, "locksidecar's I/O thread failed", e);
                    link.fail(new ConnectionLostException("the client failed: " + e, e));
                }
            }
        } catch (IOException | RuntimeException | Error e) {
            link.ended();
            link.fail(new UnavailableException("the client cannot wait for its socket: " + e, e));
        }
    }

    /** Waits for a short time for something to do. */
    private boolean wanted(Selector s) throws IOException {
        if (!link.busy() && !link.closed()) {
            s.select(LINGER);
        }
        return link.stays();
    }

    /** Makes one attempt, if a connection is wanted and it is time, and serves the connection to its end. */
    private void connect(Selector s) throws IOException {
        Thread.interrupted(); // from code that interrupts whole thread groups; it has no meaning here
        Long timer = link.timers();
        Link.Next what = link.next(next);
        if (what != Link.Next.DIAL) {
            long until = what == Link.Next.WAIT ? next : System.nanoTime() + LINGER * 1_000_000;
            s.select(millis(timer != null && timer - until < 0 ? timer : until));
            return;
        }
        try (SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX)) {
            Conn c = open(channel, s);
            pause = 10;
            serve(c, channel, s);
        } catch (IOException | LockException e) {
            LockException why = e instanceof LockException l ? l
                    : new UnavailableException("no connection to " + link.setup.path() + ": " + e.getMessage(), e);
            double rest = pause * (0.5 + ThreadLocalRandom.current().nextDouble() / 2);
            next = System.nanoTime() + (long) (rest * 1_000_000);
            pause = Math.min(250, 2 * pause);
            link.failed(why, next, !(why instanceof UnavailableException));
        }
        s.selectNow(); // releases the closed channel
    }

    /** Returns the milliseconds until then, at least 1. */
    private static long millis(long until) {
        return Math.max(1, (until - System.nanoTime()) / 1_000_000 + 1);
    }

    /** Connects and says hello. After the welcome, the connection belongs to the link. */
    private Conn open(SocketChannel channel, Selector s) throws IOException {
        channel.configureBlocking(false);
        try {
            if (!channel.connect(UnixDomainSocketAddress.of(link.setup.path()))) {
                throw new UnavailableException("the daemon at " + link.setup.path() + " takes no more connections");
            }
        } catch (IOException | IllegalArgumentException e) {
            throw new UnavailableException(refused(link.setup.path(), e), e);
        }
        SelectionKey key = channel.register(s, SelectionKey.OP_READ);
        Conn c = new Conn(link, channel, s::wakeup);
        Inbox in = new Inbox(channel);
        key.attach(in);
        long limit = System.nanoTime() + link.setup.timeout();
        c.requests.hello(Key.clip(link.setup.name()), Key.clip(link.setup.label()));
        while (!c.welcome().done()) {
            long left = limit - System.nanoTime();
            if (left <= 0) {
                throw link.silent();
            }
            if (link.closed()) {
                throw link.closing();
            }
            s.select(left / 1_000_000 + 1);
            s.selectedKeys().clear();
            link.timers();
            try {
                in.read(c);
            } catch (LockException e) {
                throw placed(e);
            }
        }
        return c;
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
    private void serve(Conn c, SocketChannel channel, Selector s) throws IOException {
        SelectionKey key = channel.keyFor(s);
        link.connected(c);
        LockException why;
        try {
            turn(c, key, s);
            return;
        } catch (LockException e) {
            why = placed(e);
        } catch (IOException e) {
            why = new ConnectionLostException("the connection to the daemon at " + link.setup.path() + " failed: "
                    + e.getMessage(), e);
        }
        c.die(why, "connection");
    }

    /** Runs until the connection has ended. */
    private void turn(Conn c, SelectionKey key, Selector s) throws IOException {
        Inbox in = (Inbox) key.attachment();
        Long lastWords = null;
        while (c.dead == null) {
            boolean writing = c.out().goOn();
            key.interestOps(writing ? SelectionKey.OP_READ | SelectionKey.OP_WRITE : SelectionKey.OP_READ);
            Long timer = link.timers();
            long rest = c.patience();
            s.select(timer == null ? rest : Math.min(rest, millis(timer)));
            Thread.interrupted(); // from code that interrupts whole thread groups; it has no meaning here
            s.selectedKeys().clear();
            c.look();
            boolean more = true;
            for (int i = 0; i < READS && more && c.dead == null; i++) {
                more = in.read(c);
                c.flush();
            }
            if (!more && c.dead == null) {
                c.sweep();
            }
            IOException fault = c.fault();
            if (fault != null) { // the daemon may have sent the reason
                lastWords = lastWords == null ? System.nanoTime() + 1_000_000_000 : lastWords;
                if (System.nanoTime() - lastWords >= 0) {
                    throw fault;
                }
            }
        }
    }

    /** Returns e with the daemon's path in its message. */
    private LockException placed(LockException e) {
        String message = e.getMessage() + " (daemon at " + link.setup.path() + ")";
        if (e instanceof ProtocolException) {
            return new ProtocolException(message, e);
        }
        if (e instanceof ConnectionLostException) {
            return new ConnectionLostException(message, e);
        }
        return e;
    }
}
