package io.locksidecar.chaos;

import io.locksidecar.LockException;
import io.locksidecar.Sidecar;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A worker of the chaos runner in Java, with the same orders and the same events as load.go.
 *
 * <p>Java cannot read CLOCK_BOOTTIME. The driver states how far it is ahead of CLOCK_MONOTONIC, which {@link
 * System#nanoTime} reads on Linux. Both advance alike while the machine does not sleep.
 */
final class Worker {
    final Map<String, String> orders = new HashMap<>();
    final Sidecar sidecar;
    final AtomicLong acquires = new AtomicLong();
    volatile boolean stopped;
    private final long offset;
    private final OutputStream out = System.out;

    private Worker(String[] words) {
        for (String word : words) {
            int at = word.indexOf('=');
            orders.put(word.substring(0, at), word.substring(at + 1));
        }
        offset = Long.parseLong(orders.get("offset"));
        sidecar = Sidecar.builder().socket(Path.of(orders.get("socket"))).name("chaos java")
                .label("worker " + orders.get("worker")).build();
    }

    public static void main(String[] words) throws Exception {
        Worker worker = new Worker(words);
        worker.note("up", worker.now(), "");
        List<Thread> owners = new ArrayList<>();
        for (int i = 1; i <= Integer.parseInt(worker.orders.get("owners")); i++) {
            Thread owner = new Thread(new Caller(worker, i), "owner " + i);
            owner.start();
            owners.add(owner);
        }
        while (System.in.read() >= 0) {
            // The end of the input tells the worker to stop.
        }
        worker.stopped = true;
        for (Thread owner : owners) {
            owner.join();
        }
        worker.sidecar.close();
        worker.note("bye", worker.now(), "");
    }

    long now() {
        return System.nanoTime() + offset;
    }

    /** Writes one event. rest has more fields, each with a comma before it. */
    void note(String event, long at, String rest) {
        byte[] line = ("{\"e\":\"" + event + "\",\"t\":" + at + rest + "}\n").getBytes(StandardCharsets.UTF_8);
        synchronized (this) {
            try {
                out.write(line);
                out.flush();
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    /** Returns the result of a request, as one word. */
    static String word(LockException e) {
        return e.code().toString();
    }
}
