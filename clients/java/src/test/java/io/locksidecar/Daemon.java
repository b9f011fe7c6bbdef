package io.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** The real daemon as a process of its own, on the embedded store, with a directory of its own. */
final class Daemon implements AutoCloseable {
    /** The repository's root, for the files that the tests read. */
    static final Path ROOT = Path.of("..", "..").toAbsolutePath().normalize();

    private final Path dir = directory();
    final Path path = dir.resolve("s").resolve("locksidecar.sock");
    private Process process;

    static Path directory() {
        try {
            return Files.createTempDirectory("ls-");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static void delete(Path dir) {
        try (var all = Files.walk(dir)) {
            all.sorted(Comparator.reverseOrder()).forEach(p -> p.toFile().delete());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** The daemon's program: the one in LOCKSIDECAR_BIN, or else the one of make build. */
    static String binary() {
        String named = System.getenv("LOCKSIDECAR_BIN");
        Path built = ROOT.resolve("bin").resolve("locksidecar");
        String path = named != null && !named.isEmpty() ? named : built.toString();
        assertTrue(Files.isExecutable(Path.of(path)), "no daemon to test with: set LOCKSIDECAR_BIN, or make build");
        return Path.of(path).toAbsolutePath().toString();
    }

    static Daemon started(String... flags) {
        Daemon d = new Daemon();
        try {
            d.start(flags);
        } catch (RuntimeException | Error e) {
            d.close();
            throw e;
        }
        return d;
    }

    void start(String... flags) {
        List<String> command = new ArrayList<>(
                List.of(binary(), "serve", "--socket", path.toString(), "--log-level", "warn"));
        command.addAll(Arrays.asList(flags));
        try {
            process = new ProcessBuilder(command)
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.appendTo(dir.resolve("log").toFile()))
                    .start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        Until.until("the daemon answers", () -> {
            assertTrue(process.isAlive(), () -> "the daemon has ended: " + log());
            try (SocketChannel c = SocketChannel.open(StandardProtocolFamily.UNIX)) {
                return c.connect(UnixDomainSocketAddress.of(path));
            } catch (IOException e) {
                return false;
            }
        });
    }

    String log() {
        try {
            return Files.readString(dir.resolve("log"));
        } catch (IOException e) {
            return e.toString();
        }
    }

    long pid() {
        return process.pid();
    }

    void terminate() {
        process.destroy();
    }

    int exit() {
        try {
            assertTrue(process.waitFor(Until.BOUND, TimeUnit.SECONDS), "the daemon has not ended");
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
        return process.exitValue();
    }

    void kill() {
        process.destroyForcibly();
        exit();
    }

    void freeze() {
        freeze(process);
    }

    void thaw() {
        signal(process, "CONT");
    }

    /** Makes the daemon read its configuration again. */
    void hangUp() {
        signal(process, "HUP");
    }

    static void signal(Process p, String name) {
        try {
            assertEquals(0, new ProcessBuilder("kill", "-" + name, Long.toString(p.pid())).start().waitFor());
        } catch (IOException | InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    /** Stops a process with all its threads, and returns when they are stopped. */
    static void freeze(Process p) {
        signal(p, "STOP");
        Until.until("the process is stopped", () -> {
            try (var tasks = Files.list(Path.of("/proc", Long.toString(p.pid()), "task"))) {
                return tasks.allMatch(t -> {
                    try {
                        String stat = Files.readString(t.resolve("stat"));
                        return stat.startsWith("T", stat.lastIndexOf(')') + 2);
                    } catch (IOException e) {
                        return true; // it has just ended
                    }
                });
            }
        });
    }

    @Override
    public void close() {
        if (process != null && process.isAlive()) {
            thaw();
            kill();
        }
        delete(dir);
    }

    /** A Java program with this class path in a process of its own, which is controlled by lines. */
    static final class Program implements AutoCloseable {
        final Process process;
        private final BufferedReader out;

        Program(Class<?> main, String... args) {
            List<String> command = new ArrayList<>(List.of(
                    Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                    "-XX:TieredStopAtLevel=1", "-Xmx64m", "-cp", System.getProperty("java.class.path"),
                    main.getName()));
            command.addAll(Arrays.asList(args));
            try {
                process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            out = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        }

        /** Waits for the next line that it prints. */
        String line() {
            try {
                return out.readLine();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        void say(String line) {
            try {
                OutputStream in = process.getOutputStream();
                in.write((line + "\n").getBytes(StandardCharsets.UTF_8));
                in.flush();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        @Override
        public void close() {
            process.destroyForcibly();
            try {
                process.waitFor();
            } catch (InterruptedException e) {
                throw new AssertionError(e);
            }
        }
    }
}
