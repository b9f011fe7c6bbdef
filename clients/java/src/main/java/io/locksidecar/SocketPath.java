package io.locksidecar;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** The path of the daemon's socket, in the order of PROTOCOL.md, section 2. */
final class SocketPath {
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
        if (!named.isEmpty()) {
            return Path.of(named);
        }
        String runtime = env.getOrDefault("XDG_RUNTIME_DIR", "");
        if (!root && !runtime.isEmpty()) {
            return Path.of(runtime, "locksidecar", "locksidecar.sock");
        }
        return Path.of(SYSTEM);
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
