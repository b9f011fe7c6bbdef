package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** A real daemon, and what can happen to it and to its clients. */
class FailureTest extends OnDaemon {
    /** Holds its second argument's key until it is killed. */
    static final class Holder {
        public static void main(String[] args) throws InterruptedException {
            Sidecar.create(Path.of(args[0])).lock(args[1]).lock();
            System.out.println("held");
            Thread.sleep(Long.MAX_VALUE);
        }
    }

    /** Holds a fixed lock, and prints what it knows of it when it is told to. */
    static final class Frozen {
        public static void main(String[] args) throws Exception {
            LockOptions options = LockOptions.defaults().ttl(Duration.ofMillis(500)).fixed();
            Sidecar client = Sidecar.create(Path.of(args[0]));
            client.tryLease(args[1] + ", to load the classes").orElseThrow().close(); // which can take longer than the TTL
            SidecarLock lock = client.lock(args[1], options);
            lock.lock();
            System.out.println("held");
            System.in.read();
            System.out.println(lock.isHeldByOwner() + " " + lock.remaining());
            try {
                lock.unlock();
            } catch (LostException e) {
                System.out.println(e.reason());
            }
        }
    }

    @Test
    void a_client_that_is_killed_has_released() {
        try (Daemon.Program holder = new Daemon.Program(Holder.class, daemon.path.toString(), key)) {
            assertEquals("held", holder.line());
            SidecarLock lock = connect().lock(key);
            assertFalse(lock.tryLock());
            holder.process.destroyForcibly();
            lock.lock();
        }
    }

    @Test
    void a_frozen_client_does_not_believe_that_it_holds() {
        try (Daemon.Program frozen = new Daemon.Program(Frozen.class, daemon.path.toString(), key)) {
            assertEquals("held", frozen.line());
            Daemon.freeze(frozen.process);
            SidecarLock lock = connect().lock(key);
            lock.lock(); // its time is over
            frozen.say("go");
            Daemon.signal(frozen.process, "CONT");
            assertEquals("false PT0S", frozen.line());
            String reason = frozen.line();
            assertEquals("fixed_end", reason);
            assertTrue(lock.isHeldByOwner());
        }
    }

    /** Holds a watched lock, and prints what it knows of it when it is told to. */
    static final class Silent {
        public static void main(String[] args) throws Exception {
            Lease lease = Sidecar.create(Path.of(args[0])).lease(args[1]);
            lease.onLost().thenAccept(lost -> System.out.println(lost.reason()));
            System.out.println("held");
            System.in.read();
            System.out.println(lease.isValid());
            Thread.sleep(Long.MAX_VALUE);
        }
    }

    @Test
    void a_client_that_is_frozen_for_longer_than_the_heartbeat_has_lost() throws Exception {
        Path config = Files.createTempFile("ls-", ".yaml");
        Files.writeString(config, "namespaces:\n  a_client: {heartbeat: 4s}\n");
        try (Daemon other = Daemon.started("--config", config.toString());
                Daemon.Program frozen = new Daemon.Program(Silent.class, other.path.toString(), key);
                Sidecar client = Sidecar.create(other.path)) {
            assertEquals("held", frozen.line());
            assertFalse(client.lock(key).tryLock(6, TimeUnit.SECONDS), "the heartbeat is sent");
            Daemon.freeze(frozen.process);
            Lease lease = client.lease(key);
            frozen.say("go");
            Daemon.signal(frozen.process, "CONT");
            List<String> said = List.of(frozen.line(), frozen.line());
            assertTrue(said.contains("silent") || said.contains("silence"), said.toString());
            assertTrue(said.contains("false"), said.toString());
            lease.releaseAsync();
        } finally {
            Files.delete(config);
        }
    }

    /** The embedded store states 10 s: a client that is silent after the reload has lost its hold by then. */
    @Test
    void a_heartbeat_that_a_reload_adds_costs_no_holds() throws Exception {
        Path config = Files.createTempFile("ls-", ".yaml");
        Files.writeString(config, "{}\n");
        try (Daemon other = Daemon.started("--config", config.toString());
                Sidecar holder = Sidecar.create(other.path);
                Sidecar client = Sidecar.create(other.path)) {
            Lease lease = holder.lease(key);
            Files.writeString(config, "namespaces:\n  a_heartbeat: {heartbeat: 4s}\n");
            other.hangUp();
            assertFalse(client.lock(key).tryLock(13, TimeUnit.SECONDS), "the silent holder has lost it");
            assertTrue(lease.isValid());
            lease.releaseAsync();
        } finally {
            Files.delete(config);
        }
    }

    @Test
    void a_child_process_has_no_part_in_the_connection() throws Exception {
        connect().lock(key).lock();
        Process child = new ProcessBuilder("sleep", "600").start();
        try {
            Path of = Path.of("/proc", Long.toString(child.pid()));
            until("it runs", () -> Files.readString(of.resolve("cmdline")).startsWith("sleep"));
            try (Stream<Path> all = Files.list(of.resolve("fd"))) {
                for (Path fd : all.toList()) {
                    assertFalse(target(fd).startsWith("socket:"));
                }
            }
        } finally {
            child.destroyForcibly();
        }
    }

    /** Returns what a descriptor of a process is open on; empty if the process has closed it meanwhile. */
    private static String target(Path fd) throws IOException {
        try {
            return Files.readSymbolicLink(fd).toString();
        } catch (NoSuchFileException e) {
            return "";
        }
    }

    @Test
    void no_caller_hangs_when_the_daemon_goes() {
        try (Daemon other = Daemon.started()) {
            Sidecar held = closing(Sidecar.builder().socket(other.path).build());
            held.lock(key).lock();
            Sidecar client = closing(Sidecar.builder() // the daemon does not come back
                    .socket(other.path).patience(Duration.ofMillis(200)).build());
            List<Background<?>> waiting = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                waiting.add(running(client.lock(key)::lock));
                waiting.add(background(client.leaseAsync(key)::join));
            }
            untilWaiting(client, key, 8);
            other.kill();
            for (Background<?> w : waiting) {
                Throwable e = w.thrown();
                assertInstanceOf(UnavailableException.class, e);
                assertTrue(e.getMessage().contains(other.path.toString()), e.getMessage());
            }
        }
    }

    @Test
    void no_daemon() throws InterruptedException {
        Path nowhere = Path.of("/nowhere/at/all");
        Sidecar client = closing(Sidecar.create(nowhere));
        assertEquals(nowhere, client.socket());
        SidecarLock lock = client.lock(key);
        for (Until.Task task : List.<Until.Task>of(
                client::connect, client::ping, lock::isLocked, lock::tryLock, lock::lock, lock::lockInterruptibly,
                () -> lock.tryLock(1, TimeUnit.MILLISECONDS), () -> client.lease(key), client.leaseAsync(key)::join)) {
            Throwable e = running(task).thrown();
            assertInstanceOf(UnavailableException.class, e);
            assertTrue(e.getMessage().contains("no daemon at /nowhere/at/all"), e.getMessage());
        }
        assertFalse(lock.isHeldByOwner());
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        Sidecar tooLong = closing(Sidecar.create(Path.of("/" + "x".repeat(200))));
        assertThrows(UnavailableException.class, tooLong::connect);
    }

    @Test
    void a_socket_that_is_the_wrong_one_is_named() throws Exception {
        Path aside = daemon.path.resolveSibling("nobody");
        try (var nobody = java.nio.channels.ServerSocketChannel.open(java.net.StandardProtocolFamily.UNIX)) {
            nobody.bind(java.net.UnixDomainSocketAddress.of(aside));
        }
        for (Path p : List.of(aside, daemon.path.resolveSibling("none"))) {
            String message = assertThrows(UnavailableException.class, closing(Sidecar.create(p))::connect).getMessage();
            assertTrue(message.startsWith("no daemon at " + p + ": "), message);
            assertTrue(message.contains("'locksidecar serve'") && message.contains("LOCKSIDECAR_SOCKET"), message);
        }
        Path gone = Path.of(aside + ".admin");
        Files.createFile(gone);
        assertTrue(assertThrows(UnavailableException.class, closing(Sidecar.create(gone))::connect).getMessage()
                .endsWith("; this is the name of an admin socket; the socket for locks is " + aside));
        Files.delete(aside);
        assertTrue(assertThrows(UnavailableException.class, closing(Sidecar.create(aside))::connect).getMessage()
                .endsWith("; only an admin socket is there, " + gone));
        Path admin = Path.of(daemon.path + ".admin");
        String message = assertThrows(LockException.class, closing(Sidecar.create(admin)).lock(key)::lock).getMessage();
        assertTrue(message.contains("the admin socket; the socket for locks is " + daemon.path + " "), message);
        assertTrue(message.contains(admin.toString()), message);
        Path link = Files.createSymbolicLink(daemon.path.resolveSibling("another"), admin);
        message = assertThrows(LockException.class, closing(Sidecar.create(link))::connect).getMessage();
        assertTrue(message.contains("HTTP") && message.contains(link.toString()), message);
    }

    @Test
    void a_socket_that_is_gone_and_comes_back() throws Exception {
        try (Daemon other = Daemon.started()) {
            Sidecar client = closing(Sidecar.create(other.path));
            SidecarLock lock = client.lock(key);
            lock.lock();
            Path aside = other.path.resolveSibling("aside");
            Files.move(other.path, aside);
            assertTrue(lock.isHeldByOwner(), "the connection stands without the path");
            lock.unlock();
            Sidecar late = closing(Sidecar.create(other.path));
            assertThrows(UnavailableException.class, late.lock(key)::tryLock);
            Background<Boolean> waiting = background(() -> late.lock(key).tryLock(1, TimeUnit.MINUTES));
            Files.move(aside, other.path);
            assertTrue(waiting.result());
        }
    }

    @Test
    void a_stopping_daemon_lets_holders_finish() {
        try (Daemon other = Daemon.started("--drain", "30s")) {
            Sidecar client = closing(Sidecar.create(other.path));
            SidecarLock lock = client.lock(key);
            lock.lock();
            other.terminate();
            until("it drains", () -> drains(client));
            assertTrue(lock.isHeldByOwner());
            lock.unlock();
            assertEquals(0, other.exit());
        }
    }

    static boolean drains(Sidecar client) {
        SidecarLock other = client.lock("other");
        try {
            if (other.tryLock()) {
                other.unlock();
            }
            return false;
        } catch (UnavailableException e) {
            return e.code() == Code.DRAINING;
        }
    }

    @Test
    void what_the_daemon_refuses_leaves_the_connection_alone() {
        Sidecar client = connect();
        SidecarLock lock = client.lock(key, LockOptions.defaults().ttl(Duration.ofDays(2)));
        LockException e = Until.refused(Code.INVALID, lock::lock);
        assertTrue(e.getMessage().contains(daemon.path.toString()), e.getMessage());
        client.lock(key).lock();
    }

    @Test
    void what_cannot_be_is_refused_at_once() {
        Sidecar client = connect();
        for (String key : List.of("", "k".repeat(513), "ü".repeat(257), "a\nb", "\u007f", "\u0080", "\u009f", "\ud800")) {
            Until.refused(Code.INVALID, () -> client.lock(key));
            Until.refused(Code.INVALID, () -> client.leaseAsync(key));
        }
        assertThrows(NullPointerException.class, () -> client.lock(null));
        for (String key : List.of(" ", "\u00a0", "k".repeat(512), "ü".repeat(256), "\ud83d\udd12".repeat(128))) {
            SidecarLock lock = client.lock(key);
            lock.lock();
            lock.unlock();
        }
        for (Duration d : List.of(Duration.ZERO, Duration.ofSeconds(-1))) {
            Until.refused(Code.INVALID, () -> LockOptions.defaults().ttl(d));
            Until.refused(Code.INVALID, () -> Sidecar.builder().timeout(d));
        }
        LockOptions.defaults().ttl(Duration.ofNanos(1));
        closing(Sidecar.builder().socket(daemon.path).name("ü".repeat(100)).label("l".repeat(200)).build()).connect();
    }

    @Test
    void where_the_daemon_is_looked_for() {
        var env = new java.util.HashMap<>(java.util.Map.of("LOCKSIDECAR_SOCKET", "/named", "XDG_RUNTIME_DIR", "/xdg"));
        assertEquals(Path.of("/named"), IoThread.SocketPath.byDefault(env, true));
        env.put("LOCKSIDECAR_SOCKET", "");
        assertEquals(Path.of("/xdg/locksidecar/locksidecar.sock"), IoThread.SocketPath.byDefault(env, false));
        assertEquals(Path.of("/run/locksidecar/locksidecar.sock"), IoThread.SocketPath.byDefault(env, true));
        env.clear();
        assertEquals(Path.of("/run/locksidecar/locksidecar.sock"), IoThread.SocketPath.byDefault(env, false));
        Sidecar.create().close();
    }

    /** Makes clients and closes them, and prints what is left. */
    static final class Leaks {
        public static void main(String[] args) throws Exception {
            cycle(args[0]);
            long before = descriptors();
            for (int i = 0; i < 20; i++) {
                cycle(args[0]);
            }
            long threads = 1;
            for (int i = 0; i < 3000 && threads > 0; i++) {
                threads = Thread.getAllStackTraces().keySet().stream()
                        .filter(t -> t.getName().startsWith("locksidecar")).count();
                Thread.sleep(10);
            }
            System.out.println(descriptors() - before + " descriptors, " + threads + " threads");
        }

        private static void cycle(String path) throws Exception {
            try (Sidecar client = Sidecar.create(Path.of(path))) {
                client.lock("leaks", LockOptions.defaults().onLost(e -> { })).lock();
                client.leaseAsync("leaks two").join();
            }
        }

        private static long descriptors() throws Exception {
            try (Stream<Path> all = Files.list(Path.of("/proc/self/fd"))) {
                return all.count();
            }
        }
    }

    @Test
    void nothing_is_left_of_a_closed_client() {
        if (!new File("/proc/self/fd").isDirectory()) {
            return;
        }
        try (Daemon.Program program = new Daemon.Program(Leaks.class, daemon.path.toString())) {
            assertEquals("0 descriptors, 0 threads", program.line());
        }
    }
}
