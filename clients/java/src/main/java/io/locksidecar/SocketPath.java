package io.locksidecar;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** Where the daemon listens, in the order that PROTOCOL.md, section 2, gives. */
final class SocketPath {
    static final String VARIABLE = "LOCKSIDECAR_SOCKET";
    private static final String SYSTEM = "/run/locksidecar/locksidecar.sock";

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

    /** Tells whether this process runs as root, without a module for it. */
    private static boolean root() {
        try {
            return Integer.valueOf(0).equals(Files.getAttribute(Path.of("/proc/self"), "unix:uid"));
        } catch (IOException | UnsupportedOperationException | IllegalArgumentException e) {
            return "root".equals(System.getProperty("user.name"));
        }
    }
}
