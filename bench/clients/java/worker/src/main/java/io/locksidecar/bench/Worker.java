package io.locksidecar.bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiFunction;

/**
 * A worker of the benchmarks in Java, like harness.serveWorker in Go.
 *
 * <p>It exchanges lines of JSON: it reads a spec, writes "ready", reads the start time, and writes the report; and then
 * reads the next spec, as long as there is one. Its callers, which are threads, acquire and release locks as Work says.
 * The load is the name of the way to acquire locks, which stays the same.
 *
 * <p>Before it is ready, the worker has done enough of the same work to load the classes and to compile the code. It
 * should be run with C1 only ({@code -XX:TieredStopAtLevel=1}) if there are many workers: in 16 processes, the
 * compilations of C2 would take more time than the work.
 */
final class Worker {
    /**
     * Pairs before a kind of work is done for the first time, which is enough for C1. With one key, there is also a
     * limit of time.
     */
    private static final int WARM_PAIRS = 3000;
    private static final int WARM_WANTED = 500;
    private static final Duration WARM_MOST = Duration.ofSeconds(60);
    /** How long callers may continue that wait for a lock at the end of the window. */
    private static final long GRACE_MILLIS = 10_000;

    private enum Phase { WARMING, MEASURING, STOPPED }

    private final Way way;
    private final Work work;
    private final Board board;
    private final int proc;
    private final int threads;
    private volatile Phase phase = Phase.WARMING;

    private Worker(Way way, JsonNode spec) throws IOException {
        JsonNode args = spec.get("Args");
        this.way = way;
        work = Work.of(args);
        board = work.wanted() ? new Board(args.get("Board").asText()) : null;
        proc = spec.get("Proc").asInt();
        threads = args.get("Callers").asInt();
    }

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Way way = null;
        Set<String> warm = new HashSet<>();
        for (String line; (line = in.readLine()) != null; ) {
            JsonNode spec = json.readTree(line);
            way = way != null ? way : Way.of(spec.get("Load").asText(), spec.get("Args").get("Addr").asText());
            Worker worker = new Worker(way, spec);
            if (warm.add(worker.work.kind())) {
                worker.warmUp();
            }
            System.out.println("\"ready\"");
            Instant start = OffsetDateTime.parse(json.readTree(in.readLine()).asText()).toInstant();
            Object report = worker.measure(start, Duration.ofNanos(spec.get("Window").asLong()));
            System.out.println(json.writeValueAsString(report));
            System.out.flush();
        }
        Runtime.getRuntime().halt(0); // callers that still wait, and the clients' threads, need no orderly end
    }

    private Thread thread(int caller, Runnable run) {
        Thread t = new Thread(run, "caller " + caller);
        t.setDaemon(true);
        t.start();
        return t;
    }

    /**
     * Makes callers do their later work, on keys that no other process uses. Some of it is done by two callers on one
     * key.
     */
    private void warmUp() throws InterruptedException {
        String mine = work.prefix() + ":warm:" + proc;
        int callers = Math.max(2, Math.min(threads, 8));
        warmUp(callers, WARM_PAIRS / callers, (caller, n) -> mine + ":" + caller + ":" + n);
        if (work.wanted()) {
            warmUp(2, WARM_WANTED / 2, (caller, n) -> mine);
        }
    }

    private void warmUp(int callers, int turns, BiFunction<Integer, Integer, String> key) throws InterruptedException {
        long end = System.nanoTime() + WARM_MOST.toNanos();
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < callers; i++) {
            int caller = i;
            all.add(thread(i, () -> {
                Tally tally = new Tally();
                for (int n = 0; n < turns && (n == 0 || System.nanoTime() - end < 0); n++) {
                    own(key.apply(caller, n), tally);
                }
                if (tally.errors > 0) {
                    System.err.println(tally.lastError);
                }
            }));
        }
        for (Thread t : all) {
            t.join();
        }
    }

    private int id(int caller) {
        return proc * threads + caller + 1;
    }

    private Map<String, Object> measure(Instant start, Duration window) throws InterruptedException {
        List<Tally> tallies = new ArrayList<>();
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Tally tally = new Tally();
            int me = id(i);
            tallies.add(tally);
            all.add(thread(i, () -> call(me, tally)));
        }
        sleep(Duration.between(Instant.now(), start));
        long cpu = cpu();
        long begin = System.nanoTime();
        phase = Phase.MEASURING;
        sleep(window);
        phase = Phase.STOPPED;
        cpu = cpu() - cpu;
        long took = System.nanoTime() - begin;
        long end = System.nanoTime() + GRACE_MILLIS * 1_000_000;
        Tally sum = new Tally();
        for (int i = 0; i < threads; i++) {
            all.get(i).join(Math.max(1, (end - System.nanoTime()) / 1_000_000));
            sum.merge(tallies.get(i)); // of a caller that still waits, everything except that wait
        }
        return Map.of(
                "Tally", sum.json(),
                "PerCaller", tallies.stream().map(Tally::n).toList(),
                "CPU", cpu,
                "Window", took);
    }

    /** Runs one caller, until the window is over. */
    private void call(int me, Tally tally) {
        Way.One only = work.keys() == 1 ? way.lock(work.key(0), Way.How.MUTEX) : null;
        for (long n = 0; phase != Phase.STOPPED; n++) {
            if (!work.wanted()) {
                own(work.prefix() + ":" + me + ":" + n, tally);
                continue;
            }
            int slot = work.slot();
            Way.How how = work.how();
            wanted(only != null ? only : way.lock(work.key(slot), how), slot, how == Way.How.READ, me, tally);
        }
    }

    /** Makes one pair on a key that is not checked. Errors always count, and the pair within the window. */
    private void own(String key, Tally tally) {
        long asked = System.nanoTime();
        try {
            Way.One one = way.lock(key, work.how());
            one.acquire();
            one.release();
        } catch (Exception e) {
            tally.error(e);
            return;
        }
        if (phase == Phase.MEASURING) {
            tally.add(System.nanoTime() - asked);
        }
    }

    /** Makes one turn on a key that other callers use, too, and measures the wait. Faults always count. */
    private void wanted(Way.One one, int slot, boolean shared, int me, Tally tally) {
        long asked = System.nanoTime();
        try {
            one.acquire();
            long waited = System.nanoTime() - asked;
            Board.Seen seen = board.enter(slot, me, one.fence(), shared);
            tally.overlaps += seen.overlap() ? 1 : 0;
            tally.fenceFaults += seen.fenceFault() ? 1 : 0;
            if (phase == Phase.MEASURING) {
                tally.add(waited);
                tally.handoffs += seen.handoff() ? 1 : 0;
            }
            board.leave(slot, me, shared);
            one.release();
        } catch (Exception e) {
            tally.error(e);
        }
    }

    private static void sleep(Duration time) throws InterruptedException {
        Thread.sleep(Math.max(0, time.toMillis()), time.isNegative() ? 0 : time.toNanosPart() % 1_000_000);
    }

    /** Returns the processor time of all threads of this process, in nanoseconds. */
    private static long cpu() {
        var os = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return os.getProcessCpuTime();
    }
}
