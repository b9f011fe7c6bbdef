package io.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * The conformance runner, as for a client of any language; {@link #main} is the adapter that it drives. Commands
 * come on standard input, one JSON object a line, and are answered on standard output; docs/contribute/client.md has them.
 */
class ConformanceTest {
    // impossible: Java 17 makes sockets without close-on-exec and offers no way to set it. Programs that it runs inherit
    // nothing all the same, since it closes their descriptors: FailureTest.a_child_process_has_no_part_in_the_connection.

    @Test
    @Timeout(value = 5, unit = TimeUnit.MINUTES)
    void passesTheRunner() throws Exception {
        String path = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
        String java = ProcessHandle.current().info().command().orElse("java");
        Process p = new ProcessBuilder(
                        Daemon.binary(), "conformance", "--json", "--timeout", "90s", "--client", java, "--",
                        "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp", path,
                        ConformanceTest.class.getName())
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        Set<String> skipped = new TreeSet<>();
        List<String> failed = new ArrayList<>();
        int passed = 0;
        try (var out = new BufferedReader(new InputStreamReader(p.getInputStream(), StandardCharsets.UTF_8))) {
            for (String line; (line = out.readLine()) != null; ) {
                Map<String, String> r = fields(line);
                switch (r.get("outcome")) {
                    case "passed" -> passed++;
                    case "skipped" -> skipped.add(r.get("name"));
                    default -> {
                        if (!r.get("name").equals("close-on-exec")) { // see impossible
                            failed.add(line);
                        }
                    }
                }
            }
        }
        int code = p.waitFor();
        assertEquals(List.of(), failed);
        assertTrue(code == 0 || code == 1, () -> "exit code " + code);
        assertEquals(Set.of("close-on-exec", "fork"), skipped, "a JVM does neither");
        assertTrue(passed > 50, () -> "too few scenarios");
    }

    /** Runs the adapter until standard input ends. */
    public static void main(String[] args) throws IOException {
        new Adapter().serve();
        System.exit(0);
    }

    private static final String TEXT = "\"((?:[^\"\\\\]|\\\\.)*+)\"";
    private static final Pattern FIELD =
            Pattern.compile("\\G[{,]" + TEXT + ":(?:" + TEXT + "|([^,}\\[\"]+|\\[(?:" + TEXT + "|[^]\"])*+]))");
    private static final Pattern ENTRY = Pattern.compile(TEXT + "|(\\d+)");
    private static final Pattern ESCAPE = Pattern.compile("\\\\(?:u(....)|(.))");

    /** Reads the fields of an object as the runner writes it. Numbers and arrays are not parsed. */
    private static Map<String, String> fields(String json) {
        Map<String, String> fields = new LinkedHashMap<>();
        for (Matcher m = FIELD.matcher(json); m.find(); ) {
            fields.put(m.group(1), m.group(2) == null ? m.group(3) : unescape(m.group(2)));
        }
        return fields;
    }

    /** Reads an array of texts, or of numbers. */
    private static List<String> entries(String array) {
        return ENTRY.matcher(array).results().map(m -> m.group(1) == null ? m.group(2) : unescape(m.group(1))).toList();
    }

    private static String unescape(String text) {
        return ESCAPE.matcher(text).replaceAll(m -> {
            int at = m.group(1) == null ? "bfnrt".indexOf(m.group(2)) : -1;
            String c = m.group(1) != null
                    ? String.valueOf((char) Integer.parseInt(m.group(1), 16))
                    : at < 0 ? m.group(2) : String.valueOf("\b\f\n\r\t".charAt(at));
            return Matcher.quoteReplacement(c);
        });
    }

    /** The program that the runner drives. */
    private static final class Adapter {
        private static final String CAN = "[\"concurrent\", \"owners\", \"reentrant\", \"shared\", \"downgrade\","
                + " \"ttl\", \"fixed\", \"renew\", \"cancel\", \"many\", \"any\", \"keep\","
                + " \"events\", \"permits\", \"quiet\", \"unlock\"]";

        private record Name(long owner, String key, String fence) {
            static Name of(Map<String, String> q) {
                return new Name(Long.parseLong(q.get("owner")), q.get("key"), q.get("fence"));
            }
        }

        private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        private final Sidecar sidecar = Sidecar.builder().name("conformance").build();
        private final Map<Long, Owner> owners = new ConcurrentHashMap<>();
        private final Map<Long, Thread> running = new ConcurrentHashMap<>();
        private final Map<Name, Deque<Lease>> leases = new ConcurrentHashMap<>(); // each deque guards itself
        private final Map<Name, Lease> together = new ConcurrentHashMap<>();

        private void serve() throws IOException {
            say("{\"event\": \"ready\", \"client\": \"Java\", \"can\": " + CAN + "}");
            var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line; (line = in.readLine()) != null; ) {
                Map<String, String> q = fields(line);
                Thread t = new Thread(() -> answer(q), "command");
                t.setDaemon(true);
                running.put(Long.valueOf(q.get("id")), t);
                t.start();
            }
        }

        private void answer(Map<String, String> q) {
            String result;
            try {
                result = "\"ok\": true" + carryOut(q);
            } catch (Exception e) {
                Throwable cause = e instanceof CompletionException && e.getCause() != null ? e.getCause() : e;
                result = "\"error\": " + quote(name(cause, q));
            }
            say("{\"id\": " + q.get("id") + ", " + result + "}");
        }

        /** Carries out a command, and returns the further fields of its answer. */
        private String carryOut(Map<String, String> q) throws InterruptedException {
            switch (q.get("do")) {
                case "connect" -> sidecar.connect();
                case "close" -> sidecar.close();
                case "acquire" -> {
                    return ", \"fence\": \"" + acquire(q) + "\"";
                }
                case "cancel" -> running.get(Long.valueOf(q.get("target"))).interrupt();
                case "held" -> {
                    Deque<Lease> held = named(q);
                    synchronized (held) {
                        Lease many = together.get(Name.of(q));
                        boolean valid = held.stream().anyMatch(Lease::isValid) || many != null && many.isValid();
                        return ", \"held\": " + valid;
                    }
                }
                case "acquire_many" -> {
                    return ", \"fences\": " + acquireMany(q);
                }
                case "acquire_any" -> {
                    long wait = Long.parseLong(q.get("wait_ms"));
                    List<String> keys = entries(q.get("keys"));
                    Lease one = wait < 0
                            ? sidecar.leaseAny(keys, options(q))
                            : sidecar.tryLeaseAny(keys, Duration.ofMillis(wait), options(q))
                                    .orElseThrow(() -> new NotAcquiredException(Code.TIMEOUT, "held"));
                    keep(Long.parseLong(q.get("owner")), one);
                    return ", \"key\": " + quote(one.key()) + ", \"fence\": \"" + one.fence() + "\"";
                }
                case "release_many" -> {
                    String key = entries(q.get("keys")).get(0);
                    String fence = entries(q.get("fences")).get(0);
                    together.remove(new Name(Long.parseLong(q.get("owner")), key, fence)).releaseAsync().join();
                }
                case "release" -> {
                    Lease lease = known(q, true);
                    if ("true".equals(q.get("quiet"))) {
                        lease.closeUnconfirmed();
                    } else if ("true".equals(q.get("now"))) {
                        lease.closeNow();
                    } else {
                        lease.releaseAsync().join();
                    }
                }
                case "release_detached" -> sidecar.releaseDetached(q.get("key"), Long.parseLong(q.get("fence")));
                case "force_unlock" -> {
                    return ", \"ended\": " + sidecar.forceUnlock(q.get("key"), Long.parseLong(q.get("fence")));
                }
                case "renew" -> {
                    long ttl = Long.parseLong(q.get("ttl_ms"));
                    if (ttl == 0) {
                        known(q, false).extend();
                    } else {
                        known(q, false).extend(Duration.ofMillis(ttl));
                    }
                }
                case "downgrade" -> known(q, false).downgrade();
                default -> throw new UnsupportedOperationException("command " + q.get("do"));
            }
            return "";
        }

        private LockOptions options(Map<String, String> q) {
            long number = Long.parseLong(q.get("owner"));
            long ttl = Long.parseLong(q.get("ttl_ms"));
            LockOptions options = LockOptions.defaults()
                    .owner(owners.computeIfAbsent(number, n -> Owner.named("owner " + n)))
                    .onLost(e -> say("{\"event\": \"lost\", \"key\": " + quote(e.key()) + ", \"owner\": " + number
                            + ", \"fence\": \"" + e.fence() + "\", \"reason\": " + quote(e.reason()) + "}"));
            if (ttl != 0) {
                options = options.ttl(Duration.ofMillis(ttl));
            }
            long keep = Long.parseLong(q.getOrDefault("keep_ms", "0"));
            if (keep != 0) {
                options = options.keep(Duration.ofMillis(keep));
            }
            if ("true".equals(q.get("fixed"))) {
                options = options.fixed();
            }
            return q.get("mode").equals("shared") ? options.shared() : options;
        }

        private List<Long> acquireMany(Map<String, String> q) throws InterruptedException {
            long wait = Long.parseLong(q.get("wait_ms"));
            List<String> keys = entries(q.get("keys"));
            Lease all = wait < 0
                    ? sidecar.leaseAll(keys, options(q))
                    : sidecar.tryLeaseAll(keys, Duration.ofMillis(wait), options(q))
                            .orElseThrow(() -> new NotAcquiredException(Code.TIMEOUT, "held"));
            for (int i = 0; i < keys.size(); i++) {
                String fence = Long.toString(all.fences().get(i));
                together.put(new Name(Long.parseLong(q.get("owner")), keys.get(i), fence), all);
            }
            return all.fences();
        }

        private long acquire(Map<String, String> q) throws InterruptedException {
            long number = Long.parseLong(q.get("owner"));
            long wait = Long.parseLong(q.get("wait_ms"));
            String key = q.get("key");
            LockOptions options = options(q);
            Lease lease;
            if (q.get("mode").equals("permit")) {
                SidecarSemaphore semaphore = sidecar.semaphore(key, Integer.parseInt(q.get("permits")), options);
                lease = wait < 0 ? semaphore.acquire() : semaphore.acquire(Duration.ofMillis(wait));
            } else {
                lease = wait < 0
                        ? sidecar.lease(key, options)
                        : sidecar.tryLease(key, Duration.ofMillis(wait), options)
                                .orElseThrow(() -> new NotAcquiredException(Code.TIMEOUT, "held"));
            }
            keep(number, lease);
            return lease.fence();
        }

        private void keep(long owner, Lease lease) {
            Name name = new Name(owner, lease.key(), Long.toString(lease.fence()));
            Deque<Lease> held = leases.computeIfAbsent(name, n -> new ArrayDeque<>());
            synchronized (held) {
                held.push(lease);
            }
        }

        private Deque<Lease> named(Map<String, String> q) {
            return leases.getOrDefault(Name.of(q), new ArrayDeque<>());
        }

        /** Returns the lease that a command is about, for the last time or not. */
        private Lease known(Map<String, String> q, boolean last) {
            Deque<Lease> held = named(q);
            synchronized (held) {
                Lease lease = last ? held.poll() : held.peek();
                if (lease == null) {
                    throw new NotHeldException("no such lease");
                }
                return lease;
            }
        }

        /** Returns the protocol's name for an exception. An exception without a name of its own begins with it. */
        private static String name(Throwable e, Map<String, String> q) {
            if (e instanceof InterruptedException) {
                return "canceled";
            }
            if (!(e instanceof LockException lock)) {
                return e instanceof IllegalArgumentException ? "invalid" : e.toString();
            }
            return switch (lock.code()) {
                case BUSY, TIMEOUT -> "0".equals(q.get("wait_ms")) ? "busy" : "timeout";
                case OVERLONG -> "limit";
                case TOO_SLOW -> "closed";
                case OTHER -> e.getMessage().split(":", 2)[0].replace(' ', '_');
                default -> lock.code().toString();
            };
        }

        private static String quote(String s) {
            StringBuilder b = new StringBuilder("\"");
            s.chars().forEach(c -> b.append(c < ' ' || c == '"' || c == '\\' || c > '~'
                    ? String.format("\\u%04x", c)
                    : String.valueOf((char) c)));
            return b.append('"').toString();
        }

        private void say(String line) {
            out.println(line);
        }
    }
}
