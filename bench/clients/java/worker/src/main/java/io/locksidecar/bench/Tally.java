package io.locksidecar.bench;

import java.util.LinkedHashMap;
import java.util.Map;

/** The counts of one caller, or of all together: see harness.tally. */
final class Tally {
    private static final int BITS = 5;
    private static final int BUCKETS = 40 << BITS;

    private final long[] counts = new long[BUCKETS];
    private long longest;
    private long n;
    long handoffs;
    long overlaps;
    long fenceFaults;
    long errors;
    String lastError = "";

    void add(long nanos) {
        long v = Math.max(0, nanos);
        int e = Math.max(0, 64 - Long.numberOfLeadingZeros(v) - 1 - BITS);
        counts[(int) Math.min((e << BITS) + (v >> e), BUCKETS - 1)]++;
        longest = Math.max(longest, v);
        n++;
    }

    void error(Exception e) {
        errors++;
        lastError = e.toString();
    }

    long n() {
        return n;
    }

    void merge(Tally o) {
        for (int b = 0; b < BUCKETS; b++) {
            counts[b] += o.counts[b];
        }
        longest = Math.max(longest, o.longest);
        n += o.n;
        handoffs += o.handoffs;
        overlaps += o.overlaps;
        fenceFaults += o.fenceFaults;
        errors += o.errors;
        lastError = o.lastError.isEmpty() ? lastError : o.lastError;
    }

    Map<String, Object> json() {
        Map<String, Long> filled = new LinkedHashMap<>();
        for (int b = 0; b < BUCKETS; b++) {
            if (counts[b] > 0) {
                filled.put(Integer.toString(b), counts[b]);
            }
        }
        return Map.of(
                "Hist", Map.of("Counts", filled, "Max", longest),
                "Handoffs", handoffs,
                "Overlaps", overlaps,
                "FenceFaults", fenceFaults,
                "Errs", errors,
                "LastErr", lastError);
    }
}
