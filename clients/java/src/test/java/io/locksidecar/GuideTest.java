package io.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** The programs in the documents compile and run, and the guide names everything that exists. */
class GuideTest extends OnDaemon {
    private static final Path DOCS = Daemon.ROOT.resolve("docs");
    private static final String GUIDE = read(DOCS.resolve("guides").resolve("java.md"));
    private static final String FAILURES = read(DOCS.resolve("guides").resolve("failures.md"));

    private static final String FRAGMENT = """
            import io.locksidecar.*;
            import java.time.Duration;
            import java.util.*;
            import java.util.concurrent.*;
            import java.util.concurrent.locks.Lock;
            public class %s {
                static final Sidecar sidecar = Sidecar.create();
                static final String order = "42";
                public static void main(String[] args) throws Exception {
                    try (sidecar) {
            %s
                    }
                }
                static void charge(String order, long fence) {
                    System.out.println(fence > 0);
                }
                static void export(long one, long two) {}
                static void schedule(long fence) {
                    System.out.print(fence > 0 ? "." : "?");
                }
                static void transfer(long annsFence, long bobsFence) {
                    System.out.println(annsFence > 0 && bobsFence > 0);
                }
                static CompletableFuture<Integer> work() {
                    return CompletableFuture.supplyAsync(() -> 42);
                }
            }
            """;

    private static String read(Path path) {
        try {
            return Files.readString(path);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** The Java in all documents, except what a comment excludes. A block without a class is the body of one. */
    private static Map<String, String> programs() throws IOException {
        Map<String, String> programs = new LinkedHashMap<>();
        List<Path> pages = new ArrayList<>(List.of(Daemon.ROOT.resolve("README.md")));
        try (Stream<Path> found = Files.walk(DOCS)) {
            found.filter(p -> p.toString().endsWith(".md")).sorted().forEach(pages::add);
        }
        for (Path page : pages) {
            Matcher block = Pattern.compile("(?m)^(?<! -->\n)```java\n((?s:.*?))```").matcher(read(page));
            while (block.find()) {
                Matcher name = Pattern.compile("public (?:class|record) (\\w+)").matcher(block.group(1));
                if (name.find()) {
                    programs.put(name.group(1), block.group(1));
                } else {
                    String fragment = "Fragment" + programs.size();
                    programs.put(fragment, FRAGMENT.formatted(fragment, block.group(1)));
                }
            }
        }
        return programs;
    }

    @Test
    void the_examples_run() throws IOException, InterruptedException {
        Map<String, String> programs = programs();
        Map<String, String> prints = Map.of(
                "Fragment0", "true", "Example", "", "Fragment2", "42", "Fragment3", "70", "Fragment4", "true",
                "Fragment5", "true", "Fragment6", "... given up enough", "SidecarLockRegistry", "", "Nightly", "report true");
        assertEquals(prints.keySet(), programs.keySet());
        Path dir = Daemon.directory();
        try {
            compile(programs, dir);
            String classes = dir + System.getProperty("path.separator") + System.getProperty("java.class.path");
            for (String name : programs.keySet()) {
                if (name.equals("SidecarLockRegistry")) {
                    continue; // it has no main
                }
                ProcessBuilder b = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-XX:TieredStopAtLevel=1",
                        "-cp", classes, name);
                b.environment().put(IoThread.SocketPath.VARIABLE, daemon.path.toString());
                assertEquals(prints.get(name), run(b), name);
            }
        } finally {
            Daemon.delete(dir);
        }
    }

    private static void compile(Map<String, String> programs, Path dir) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "javac").toString(), "-Xlint:all", "-Xlint:-path",
                "-proc:none", "-d", dir.toString(), "-cp", System.getProperty("java.class.path")));
        for (Map.Entry<String, String> p : programs.entrySet()) {
            command.add(Files.writeString(dir.resolve(p.getKey() + ".java"), p.getValue()).toString());
        }
        assertEquals("", run(new ProcessBuilder(command)));
    }

    private static String run(ProcessBuilder b) throws IOException, InterruptedException {
        Process p = b.redirectErrorStream(true).start();
        String out = new String(p.getInputStream().readAllBytes()).strip();
        assertEquals(0, p.waitFor(), out);
        return out;
    }

    @Test
    void everything_has_its_name_in_it() throws IOException, ClassNotFoundException {
        try (Stream<Path> sources = Files.list(Path.of("src", "main", "java", "io", "locksidecar"))) {
            for (Path source : sources.toList()) {
                String name = source.getFileName().toString().replace(".java", "");
                if (name.equals("package-info") || !Modifier.isPublic(Class.forName("io.locksidecar." + name).getModifiers())) {
                    continue;
                }
                boolean named = Pattern.compile("\\b" + name + "\\b").matcher(GUIDE).find();
                assertTrue(named || name.startsWith("Sidecar"), name);
            }
        }
        for (String reason : Codes.REASONS) {
            assertTrue(FAILURES.contains("`" + reason + "`"), reason);
        }
    }

    @Test
    void the_version_is_everybodys() {
        String mine = first("<artifactId>locksidecar-client</artifactId>\\s*<version>([^<]+)</version>", Path.of("pom.xml"));
        assertEquals(mine, first("<artifactId>locksidecar-client</artifactId>\\s*<version>([^<]+)</version>", DOCS.resolve("guides").resolve("java.md")));
        assertEquals(mine, first("(?m)^## (\\S+)", Daemon.ROOT.resolve("CHANGELOG.md")));
        Path python = Daemon.ROOT.resolve("clients").resolve("python").resolve("pyproject.toml");
        Matcher theirs = Pattern.compile("(?m)^version = \"([^\"]+)\"").matcher(read(python));
        assertTrue(!theirs.find() || theirs.group(1).equals(mine), "the Python client has another version");
    }

    private static String first(String pattern, Path path) {
        Matcher m = Pattern.compile(pattern).matcher(read(path));
        assertTrue(m.find(), path::toString);
        return m.group(1);
    }
}
