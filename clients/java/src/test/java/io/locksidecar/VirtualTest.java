package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Virtual threads of later Javas, and the memory that a pair takes. */
class VirtualTest extends OnDaemon {
    private static final int THREADS = 50;
    private static final int PAIRS = 20;

    /**
     * The programs of the Javas that have virtual threads: those in LOCKSIDECAR_TEST_JAVAS, whose homes are separated
     * as a class path is, and this one.
     */
    static List<Path> javas() {
        List<Path> javas = new ArrayList<>();
        String homes = System.getenv().getOrDefault("LOCKSIDECAR_TEST_JAVAS", "");
        for (String home : homes.isEmpty() ? new String[0] : homes.split(File.pathSeparator)) {
            javas.add(Path.of(home, "bin", "java"));
        }
        if (Runtime.version().feature() >= 21) {
            javas.add(Path.of(System.getProperty("java.home"), "bin", "java"));
        }
        return javas;
    }

    /** If a thread that waits kept the one carrier, or spun on it, the others could not continue. */
    @Test
    void virtual_threads_that_wait_share_one_carrier() throws IOException, InterruptedException {
        inEachJava("share");
    }

    /** Other virtual threads may have all carriers for long: they compute, or are pinned. */
    @Test
    void a_virtual_thread_without_a_carrier_stops_no_other_thread() throws IOException, InterruptedException {
        inEachJava("stop");
    }

    private void inEachJava(String what) throws IOException, InterruptedException {
        for (Path java : javas()) {
            Process p = new ProcessBuilder(
                    java.toString(), "-Djdk.virtualThreadScheduler.parallelism=1", "-Djdk.virtualThreadScheduler.maxPoolSize=1",
                    "-cp", System.getProperty("java.class.path"), VirtualTest.class.getName(), daemon.path.toString(), what)
                    .redirectErrorStream(true).start();
            String out = new String(p.getInputStream().readAllBytes()).strip();
            assertEquals(0, p.waitFor(), out);
            assertEquals("done", out);
        }
    }

    /** Runs in a Java with virtual threads. */
    public static void main(String[] args) throws Exception {
        try (Sidecar sidecar = Sidecar.create(Path.of(args[0])).connect()) {
            if (args[1].equals("share")) {
                share(sidecar);
            } else {
                waits(sidecar);
                writes(sidecar);
                measures(sidecar);
            }
        }
        System.out.println("done");
    }

    private static Thread virtual(Runnable task) throws ReflectiveOperationException {
        return (Thread) Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, task);
    }

    /** A virtual thread waits for the connection's lock, and then another one has the carrier. */
    private static void waits(Sidecar sidecar) throws Exception {
        Conn conn = sidecar.link.live();
        AtomicBoolean over = new AtomicBoolean();
        Until.Background<Duration> other;
        conn.mu.lock();
        try (conn.mu) {
            Thread first = virtual(sidecar::ping);
            until("it waits", () -> List.of(first.getStackTrace()).toString().contains("Requests.send"));
            virtual(() -> spin(over));
            other = background(sidecar::ping);
            until("the other thread waits", () -> conn.mu.hasQueuedThread(other.thread));
        }
        other.result();
        over.set(true);
    }

    /** A virtual thread lets others run that the same read has woken, before it writes. */
    private static void writes(Sidecar sidecar) throws Exception {
        AtomicBoolean over = new AtomicBoolean();
        CountDownLatch spinning = new CountDownLatch(1);
        virtual(() -> {
            try {
                virtual(() -> {
                    spinning.countDown();
                    spin(over);
                });
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
            sidecar.link.live().out.woken = 2;
            sidecar.ping();
        });
        spinning.await();
        background(sidecar::ping).result();
        over.set(true);
    }

    /** A virtual thread with the connection's lock reads the clock while another thread measures it. */
    private static void measures(Sidecar sidecar) throws Exception {
        AtomicBoolean over = new AtomicBoolean();
        AtomicBoolean waited = new AtomicBoolean();
        Conn conn = sidecar.link.live();
        Mutex.spins = Integer.MAX_VALUE; // this test holds the clock for long
        Mutex clock = BootClock.SYSTEM.mu;
        clock.lock();
        try (clock) {
            Thread first = virtual(() -> {
                conn.mu.lock();
                try (conn.mu) {
                    while (!waited.get()) { // a measurement is due each second
                        BootClock.SYSTEM.now();
                    }
                }
            });
            until("it waits", () -> List.of(first.getStackTrace()).toString().contains("Mutex.lock"));
            waited.set(true);
            virtual(() -> spin(over));
        }
        background(sidecar::ping).result();
        over.set(true);
    }

    private static void spin(AtomicBoolean over) {
        while (!over.get()) {
            Thread.onSpinWait();
        }
    }

    private static void share(Sidecar sidecar) throws Exception {
        AtomicInteger inside = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(THREADS);
        for (int i = 0; i < THREADS; i++) {
            SidecarLock lock = sidecar.lock("one key");
            String own = "own " + i;
            virtual(() -> {
                for (int n = 0; n < PAIRS; n++) {
                    lock.lock();
                    if (inside.incrementAndGet() != 1) {
                        throw new IllegalStateException("two are inside");
                    }
                    Thread.yield();
                    inside.decrementAndGet();
                    lock.unlock();
                    try (Lease lease = sidecar.lease(own, Duration.ofMinutes(1))) {
                        lease.check();
                    } catch (InterruptedException e) {
                        throw new IllegalStateException(e);
                    }
                }
                done.countDown();
            });
        }
        if (!done.await(Until.BOUND, TimeUnit.SECONDS)) {
            throw new IllegalStateException(done.getCount() + " threads are not done");
        }
    }

    @Test
    void a_pair_takes_little_memory() throws ReflectiveOperationException {
        // The client's module, in which this is compiled, does not read the modules of these classes.
        Object threads = Class.forName("java.lang.management.ManagementFactory").getMethod("getThreadMXBean").invoke(null);
        Method allocated = Class.forName("com.sun.management.ThreadMXBean").getMethod("getCurrentThreadAllocatedBytes");
        Sidecar client = connect();
        List<Long> bytes = new ArrayList<>();
        for (int round = 0; round < 5; round++) {
            long before = (Long) allocated.invoke(threads);
            for (int n = 0; n < 1000; n++) {
                SidecarLock lock = client.lock(key + n);
                lock.lock();
                lock.unlock();
            }
            bytes.add(((Long) allocated.invoke(threads) - before) / 1000);
        }
        assertTrue(bytes.stream().min(Long::compare).orElseThrow() < 2500, bytes::toString);
    }
}
