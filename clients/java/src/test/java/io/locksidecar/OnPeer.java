package io.locksidecar;

import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** Tests against a daemon that sends what the test chooses. */
abstract class OnPeer {
    Peer peer;
    Sidecar client;
    /** The traceparent of acquires. */
    volatile String trace;
    /** The owner of all locks of {@link #lock}. */
    final Owner owner = Owner.named("test");
    /** The owner's number on the wire. */
    final long number = owner.number;

    @BeforeEach
    void open() {
        peer = new Peer();
        client = client(60_000);
    }

    @AfterEach
    void close() {
        peer.close();
        client.close();
    }

    /** Replaces the test's client by one with another timeout. */
    Sidecar client(long timeoutMillis) {
        client = Sidecar.builder()
                .socket(peer.path)
                .name("test")
                .timeout(Duration.ofMillis(timeoutMillis))
                .traceparent(() -> trace)
                .build();
        return client;
    }

    SidecarLock lock(String key) {
        return client.lock(key, LockOptions.defaults().owner(owner));
    }

    /** Returns a lock of k that is held by a grant that is valid for so many milliseconds. */
    SidecarLock held(long left) {
        return held(left, 0, 0);
    }

    SidecarLock held(long left, long end, long ahead) {
        SidecarLock lock = lock("k");
        Until.Background<Void> acquired = Until.running(lock::lock);
        peer.welcome(ahead);
        peer.grant(left, Peer.FENCE, end, ahead);
        acquired.result();
        return lock;
    }

    Conn conn() {
        return client.link.live();
    }

    /** Sends frames, but not the reply for which a task waits, until the task has ended. */
    void talkUntilEnded(Until.Background<?> task) {
        Until.until("it is given up", () -> {
            peer.say(200, 0);
            return task.isDone();
        });
    }

    /** Checks that the client has read everything that was sent until now, and still answers. */
    void inStep() {
        Until.Background<Inspection> inspection = Until.background(client.lock("in step")::inspect);
        List<?> q = peer.expect(Codes.INSPECT); // behind the pings that answer keepalives
        peer.say(0, q.get(1), 0, 0, 0, 0, -1, 0);
        inspection.result();
    }

    static byte[] together(byte[]... frames) {
        java.io.ByteArrayOutputStream all = new java.io.ByteArrayOutputStream();
        for (byte[] f : List.of(frames)) {
            all.writeBytes(f);
        }
        return all.toByteArray();
    }
}
