package io.locksidecar;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.api.TestInstance;

/** Tests that share one daemon: each has a key of its own, and clients that are closed at its end. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
abstract class OnDaemon {
    Daemon daemon;
    String key;
    private final List<AutoCloseable> closing = new ArrayList<>();

    @BeforeAll
    void startDaemon() {
        daemon = Daemon.started();
    }

    @AfterAll
    void stopDaemon() {
        daemon.close();
    }

    @BeforeEach
    void nameKey(TestInfo info) {
        key = info.getTestMethod().orElseThrow().getName();
    }

    @AfterEach
    void closeAll() throws Exception {
        for (int i = closing.size() - 1; i >= 0; i--) {
            closing.get(i).close();
        }
        closing.clear();
    }

    <T extends AutoCloseable> T closing(T c) {
        closing.add(c);
        return c;
    }

    Sidecar connect() {
        return closing(Sidecar.builder().socket(daemon.path).name("test").build());
    }

    /** Asks the daemon how many wait for a key. */
    static long waiters(Sidecar client, String key) {
        Peer.Raw raw = new Peer.Raw(client.socket());
        try (raw) {
            return (Long) raw.ask(Codes.INSPECT, key).get(5);
        }
    }

    static void untilWaiting(Sidecar client, String key, long count) {
        untilWaiting(client, key, Codes.EXCLUSIVE, count);
    }

    /** The same for the lock of a key, or with Codes.PERMIT for its semaphore. */
    static void untilWaiting(Sidecar client, String key, int mode, long count) {
        try (Peer.Raw raw = new Peer.Raw(client.socket())) {
            Until.until(count + " wait", () -> (Long) raw.ask(Codes.INSPECT, key, mode).get(5) == count);
        }
    }
}
