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
import java.util.List;
import java.util.Map;

/**
 * A worker of the benchmarks in Java, as harness.serveWorker is one in Go.
 *
 * <p>Lines of JSON: the spec in, "ready" out, the start time in, the report out. Its callers, Args.Threads of them,
 * or one, take locks and give them up: keys of their own (pairs), or one key that all want (hot). The load is the way
 * to the locks, java or redisson, and the kind: java/pairs, redisson/hot. Before it is ready the worker has done
 * enough of the same for the classes to be there and the code to be compiled: by C1, which it is to be run with
 * ({@code -XX:TieredStopAtLevel=1}), since what C2 takes to compile in 16 processes is more than they then do.
 */
final class Worker {
    /** Pairs of one caller before it is ready, enough for C1, and how long they may take. */
    private static final int WARM_PAIRS = 500;
    private static final Duration WARM_MOST = Duration.ofSeconds(60);
    /** How long callers that wait for a lock when the window closes may go on. */
    private static final long GRACE_MILLIS = 10_000;

    private enum Phase { WARMING, MEASURING, STOPPED }

    private final Way way;
    private final Shared shared;
    private final String key;
    private final int proc;
    private final int threads;
    private volatile Phase phase = Phase.WARMING;

    private Worker(JsonNode spec) throws IOException {
        JsonNode args = spec.get("Args");
        String[] load = spec.get("Load").asText().split("/");
        way = Way.of(load[0], args.get("Addr").asText());
        shared = load[1].equals("hot") ? new Shared(args.get("Shared").asText()) : null;
        key = args.get("Key").asText();
        proc = spec.get("Proc").asInt();
        threads = Math.max(1, args.path("Threads").asInt(1));
    }

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        JsonNode spec = json.readTree(in.readLine());
        Worker worker = new Worker(spec);
        worker.warmUp();
        System.out.println("\"ready\"");
        Instant start = OffsetDateTime.parse(json.readTree(in.readLine()).asText()).toInstant();
        Object report = worker.measure(start, Duration.ofNanos(spec.get("Window").asLong()));
        System.out.println(json.writeValueAsString(report));
        System.out.flush();
        Runtime.getRuntime().halt(0); // whoever still waits, and the clients' threads, need no ceremony
    }

    private Thread thread(int caller, Runnable run) {
        Thread t = new Thread(run, "caller " + caller);
        t.setDaemon(true);
        t.start();
        return t;
    }

    /** Has each caller do what it will do, on keys that no other process wants; on one key, there are two at least. */
    private void warmUp() throws InterruptedException {
        long end = System.nanoTime() + WARM_MOST.toNanos();
        List<Thread> all = new ArrayList<>();
        int turns = shared == null ? WARM_PAIRS : WARM_PAIRS / 2;
        for (int i = 0; i < (shared == null ? threads : Math.max(2, threads)); i++) {
            String mine = key + ":warm:" + (shared == null ? id(i) : proc);
            all.add(thread(i, () -> {
                Tally tally = new Tally();
                for (int n = 0; n < turns && (n == 0 || System.nanoTime() - end < 0); n++) {
                    turn(way.lock(shared == null ? mine + ":" + n : mine), 0, tally);
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
            sum.merge(tallies.get(i)); // of one that still waits, all but what it waits for
        }
        return Map.of(
                "Tally", sum.json(),
                "PerCaller", tallies.stream().map(Tally::n).toList(),
                "CPU", cpu,
                "Window", took);
    }

    /** Is one caller, until the window is closed. */
    private void call(int me, Tally tally) {
        Way.One hot = way.lock(key);
        for (long n = 0; phase != Phase.STOPPED; n++) {
            turn(shared != null ? hot : way.lock(key + ":" + me + ":" + n), me, tally);
        }
    }

    /** Acquires and releases once; counts it within the window, and what is wrong always. */
    private void turn(Way.One one, int me, Tally tally) {
        boolean contended = shared != null && me != 0;
        Shared.Seen seen = null;
        long asked = System.nanoTime();
        long got = 0;
        try {
            one.lock().lock();
            if (contended) {
                seen = shared.enter(me, one.held().fence());
                got = System.nanoTime();
                tally.overlaps += seen.overlap() ? 1 : 0;
                tally.fenceFaults += seen.fenceFault() ? 1 : 0;
                shared.leave(me);
            }
            one.lock().unlock();
        } catch (RuntimeException e) {
            tally.error(e);
            return;
        }
        if (phase == Phase.MEASURING) {
            tally.add((contended ? got : System.nanoTime()) - asked);
            tally.handOvers += contended && seen.handOver() ? 1 : 0;
        }
    }

    private static void sleep(Duration time) throws InterruptedException {
        Thread.sleep(Math.max(0, time.toMillis()), time.isNegative() ? 0 : time.toNanosPart() % 1_000_000);
    }

    /** Returns the processor time of this process in nanoseconds, all threads together. */
    private static long cpu() {
        var os = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return os.getProcessCpuTime();
    }
}
