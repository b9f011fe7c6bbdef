package io.locksidecar;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Messages as lists of Long, String and List, and the JSON of the golden frames. */
final class Values {
    private Values() {}

    static byte[] frame(Object... values) {
        ByteBuffer b = ByteBuffer.allocate(1 << 17);
        b.putInt(0);
        put(b, List.of(values));
        b.putInt(0, b.position() - 4);
        byte[] bytes = new byte[b.flip().remaining()];
        b.get(bytes);
        return bytes;
    }

    static void put(ByteBuffer b, Object v) {
        if (v instanceof List<?> list) {
            Msgpack.putArray(b, list.size());
            list.forEach(x -> put(b, x));
        } else if (v instanceof String s) {
            Msgpack.putText(b, s.getBytes(StandardCharsets.UTF_8));
        } else {
            Msgpack.putLong(b, ((Number) v).longValue());
        }
    }

    /** Reads a value; a type other than those three is returned as null. */
    static Object get(ByteBuffer b) {
        int t = b.get(b.position()) & 0xff;
        if ((t & 0xf0) == 0x90 || t == 0xdc || t == 0xdd) {
            List<Object> list = new ArrayList<>();
            for (int n = Msgpack.getArray(b); n > 0; n--) {
                list.add(get(b));
            }
            return list;
        }
        if ((t & 0xe0) == 0xa0 || t >= 0xd9 && t <= 0xdb) {
            return Msgpack.getText(b);
        }
        if (t < 0x80 || t >= 0xcc && t <= 0xd3 || t >= 0xe0) {
            return Msgpack.getLong(b);
        }
        Msgpack.skip(b, 1, 1);
        return null;
    }

    // ---- JSON ----

    @SuppressWarnings("unchecked")
    static Map<String, Object> json(String text) {
        return (Map<String, Object>) new Json(text).value();
    }

    private static final class Json {
        private final String s;
        private int at;

        Json(String s) {
            this.s = s;
        }

        Object value() {
            char c = s.charAt(at);
            if (c == '{') {
                Map<String, Object> map = new LinkedHashMap<>();
                for (at++; s.charAt(at) != '}'; skip(',')) {
                    String name = text();
                    skip(':');
                    map.put(name, value());
                }
                at++;
                return map;
            }
            if (c == '[') {
                List<Object> list = new ArrayList<>();
                for (at++; s.charAt(at) != ']'; skip(',')) {
                    list.add(value());
                }
                at++;
                return list;
            }
            if (c == '"') {
                return text();
            }
            int begin = at;
            while (at < s.length() && "-0123456789".indexOf(s.charAt(at)) >= 0) {
                at++;
            }
            return Long.valueOf(s.substring(begin, at));
        }

        private void skip(char c) {
            if (s.charAt(at) == c) {
                at++;
            }
        }

        private String text() {
            StringBuilder out = new StringBuilder();
            for (at++; s.charAt(at) != '"'; at++) {
                char c = s.charAt(at);
                if (c != '\\') {
                    out.append(c);
                    continue;
                }
                c = s.charAt(++at);
                if (c == 'u') {
                    out.append((char) Integer.parseInt(s.substring(at + 1, at + 5), 16));
                    at += 4;
                } else {
                    out.append(c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'b' ? '\b' : c == 'f' ? '\f' : c);
                }
            }
            at++;
            return out.toString();
        }
    }
}
