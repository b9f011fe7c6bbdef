package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The golden frames that all clients read, and the tables of PROTOCOL.md. */
class VectorsTest extends OnPeer {
    static final Path VECTORS = Daemon.ROOT.resolve("protocol").resolve("vectors");

    record Vector(String name, byte[] frame, Map<String, Object> fields) {
        @Override
        public String toString() {
            return name;
        }

        /** Returns the message's values with the types of the protocol. */
        List<Object> values() {
            List<Object> all = new ArrayList<>(fields.values());
            if (fields.containsKey("to")) {
                all.remove(0);
            }
            if (fields.containsKey("event")) {
                all.add(1, 0L);
            }
            if (fields.containsKey("keep") && !fields.containsKey("traceparent")) {
                all.add(all.size() - 1, ""); // an empty text means no trace
            }
            return all;
        }
    }

    static List<Vector> read(String file) {
        try {
            return read(Files.readAllLines(VECTORS.resolve(file)).stream());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static List<Vector> read(Stream<String> lines) {
        return lines
                .filter(line -> !line.isBlank() && !line.startsWith("#"))
                .map(line -> line.split("\t"))
                .map(c -> new Vector(c[0], HexFormat.of().parseHex(c[1].replace(" ", "")), Values.json(c[2])))
                .toList();
    }

    /** Of semaphores, each field from section 10. */
    private static List<Vector> permits() {
        String acquire = "{\"op\":2,\"id\":8,\"key\":\"order:42\",\"owner\":7,\"mode\":2,";
        return read(Stream.of(
                "a permit\t00000014 99 02 08 a86f726465723a3432 07 02 cd05dc 00 00 05\t" + acquire
                        + "\"wait\":1500,\"ttl\":0,\"flags\":0,\"permits\":5}",
                "a fixed permit\t00000014 99 02 08 a86f726465723a3432 07 02 ff 00 01 cd2710\t" + acquire
                        + "\"wait\":-1,\"ttl\":0,\"flags\":1,\"permits\":10000}",
                "a semaphore\t0000000d 94 07 0a a86f726465723a3432 02\t"
                        + "{\"op\":7,\"id\":10,\"key\":\"order:42\",\"mode\":2}"));
    }

    static Stream<Vector> written() {
        return Stream.concat(
                Stream.of("requests.txt", "replies.txt", "pushes.txt").flatMap(f -> read(f).stream()),
                permits().stream());
    }

    /** Acquires and inspects whose ids a client uses. */
    static Stream<Vector> asked() {
        return Stream.concat(read("requests.txt").stream(), permits().stream())
                .filter(v -> List.of(2L, 7L).contains(v.fields.get("op")) && (Long) v.fields.get("id") < 100);
    }

    static Stream<Vector> accepted() {
        return Stream.of("requests.txt", "replies.txt", "pushes.txt", "replies-accept.txt", "pushes-accept.txt")
                .flatMap(f -> read(f).stream());
    }

    static Stream<Vector> bad() {
        return read("bad-replies.txt").stream()
                .filter(v -> List.of(2L, 3L).contains(v.fields.getOrDefault("to", 2L)));
    }

    @ParameterizedTest
    @MethodSource("written")
    void encoding_gives_these_bytes(Vector v) {
        assertArrayEquals(v.frame, Values.frame(v.values().toArray()));
    }

    @ParameterizedTest
    @MethodSource("accepted")
    void decoding_gives_these_fields(Vector v) {
        ByteBuffer b = ByteBuffer.wrap(v.frame);
        assertEquals(v.frame.length - 4, b.getInt());
        decode(b, v.values(), 0);
        assertFalse(b.hasRemaining());
    }

    @ParameterizedTest
    @MethodSource("asked")
    void the_client_asks_with_these_bytes(Vector v) {
        Background<Void> connected = running(client::connect);
        peer.welcome(); // its id is 1
        connected.result();
        for (long id = 2; id < (Long) v.fields.get("id"); id++) {
            inStep();
        }
        trace = (String) v.fields.get("traceparent");
        String key = (String) v.fields.get("key");
        long mode = (Long) v.fields.getOrDefault("mode", 0L);
        if (v.fields.get("op").equals(7L)) {
            running(mode == 0 ? client.lock(key)::isLocked : client.semaphore(key, 1)::isHeldByAnybody);
        } else {
            Keys keys = mode == 2 ? Keys.permit(key, ((Long) v.fields.get("permits")).intValue()) : Keys.of(key);
            long[] n = Stream.of("owner", "wait", "ttl", "flags").mapToLong(f -> (Long) v.fields.get(f)).toArray();
            LockOptions options = mode == 1 ? LockOptions.defaults().shared() : LockOptions.defaults();
            options = n[2] == 0 ? options : options.ttl(Duration.ofMillis(n[2]));
            Object keep = v.fields.get("keep");
            options = keep == null ? options : options.keep(Duration.ofMillis((Long) keep));
            Acquire.of(client.link, keys, n[3] == 0 ? options : options.fixed(), n[1], "test", Owner.ofThread(), n[0], null).start();
        }
        assertArrayEquals(v.frame, peer.frame());
    }

    /** Decodes an expected value by its type, and skips appended fields. */
    private static void decode(ByteBuffer b, Object want, int level) {
        if (want instanceof List<?> list) {
            int n = Msgpack.getArray(b);
            assertTrue(n >= list.size());
            for (Object one : list) {
                decode(b, one, level + 1);
            }
            Msgpack.skip(b, n - list.size(), level + 1);
        } else if (want instanceof String) {
            assertEquals(want, Msgpack.getText(b));
        } else {
            assertEquals(want, Msgpack.getLong(b));
        }
    }

    @Test
    void requests_of_every_width_can_be_passed_over() {
        for (Vector v : read("requests-accept.txt")) {
            ByteBuffer b = ByteBuffer.wrap(v.frame).position(4);
            int n = Msgpack.getArray(b);
            assertEquals(v.fields.get("op"), Msgpack.getLong(b));
            assertEquals(v.fields.get("id"), Msgpack.getLong(b));
            Msgpack.skip(b, n - 2, 1);
            assertFalse(b.hasRemaining());
        }
    }

    @ParameterizedTest
    @MethodSource("bad")
    void bad_replies_end_the_connection(Vector v) {
        boolean release = Long.valueOf(3).equals(v.fields.get("to"));
        SidecarLock lock = lock("k"); // the frames' id is 3
        Background<?> call;
        if (release) {
            lock = held(60_000);
            call = running(lock::unlock);
            assertEquals(3L, peer.expect(Codes.RELEASE).get(1));
        } else {
            Background<?> ping = background(client::ping);
            peer.welcome();
            peer.pong();
            ping.result();
            call = running(lock::lock);
            assertEquals(3L, peer.expect(Codes.ACQUIRE).get(1));
        }
        Conn conn = conn();
        peer.raw(v.frame);
        Until.failed(Code.BAD_FRAME, call.thrown());
        assertNotNull(conn.dead);
        assertFalse(lock.isHeldByOwner());
    }

    @Test
    void anything_at_all_is_either_read_or_refused() {
        Random random = new Random(1);
        List<Vector> all = accepted().toList();
        for (int n = 0; n < 200_000; n++) {
            byte[] bytes = all.get(random.nextInt(all.size())).frame.clone();
            if (bytes.length > 4) {
                for (int i = random.nextInt(4); i >= 0; i--) {
                    bytes[4 + random.nextInt(bytes.length - 4)] = (byte) random.nextInt(256);
                }
            }
            ByteBuffer b = ByteBuffer.wrap(bytes, 4, random.nextInt(bytes.length - 3));
            try {
                Msgpack.skip(b, 1, 0);
                Values.get(ByteBuffer.wrap(bytes, 4, b.position() - 4));
            } catch (LockException e) {
                assertEquals(Code.BAD_FRAME, e.code()); // refused
            }
        }
    }

    @Test
    void nothing_nests_too_deeply() {
        for (int depth = 1; depth < 20; depth++) {
            byte[] bytes = new byte[depth + 1];
            java.util.Arrays.fill(bytes, 0, depth, (byte) 0x91);
            ByteBuffer b = ByteBuffer.wrap(bytes);
            if (depth <= 8) {
                Msgpack.skip(b, 1, 0);
            } else {
                Until.refused(Code.BAD_FRAME, () -> Msgpack.skip(b, 1, 0));
            }
        }
    }

    @Test
    void the_tables_are_those_of_the_protocol() throws IOException, IllegalAccessException {
        Map<String, Map<String, Integer>> sections = new HashMap<>();
        String section = "";
        for (String line : Files.readAllLines(VECTORS.resolveSibling("PROTOCOL.md"))) {
            if (line.startsWith("### ")) {
                section = line.substring(4).strip();
            }
            String[] cells = line.split("\\|", -1);
            if (cells.length > 4 && cells[1].strip().matches("\\d+")) {
                sections.computeIfAbsent(section, k -> new TreeMap<>())
                        .put(cells[2].strip(), Integer.valueOf(cells[1].strip()));
            }
        }
        Map<String, Integer> codes = new TreeMap<>(Map.of("ok", Codes.OK));
        Stream.of(Code.values()).filter(c -> c.number >= 0).forEach(c -> codes.put(c.toString(), c.number));
        assertEquals(sections.get("Codes of replies"), codes);
        assertEquals(
                sections.get("Reasons of lost"),
                Codes.REASONS.stream().collect(Collectors.toMap(reason -> reason, reason -> Codes.REASONS.indexOf(reason) + 1)));
        Map<String, Integer> named = new HashMap<>();
        for (Field f : Codes.class.getDeclaredFields()) {
            if (f.getType() == int.class) {
                named.put(f.getName(), f.getInt(null));
            }
        }
        for (String table : List.of("Operations", "Pushes")) {
            sections.get(table).forEach((name, number) -> assertEquals(
                    number, named.getOrDefault(name.replace('-', '_').toUpperCase(), number), name));
        }
    }
}
