package io.locksidecar.bench;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Locale;
import java.util.concurrent.ThreadLocalRandom;

/** Which keys are acquired and how, as in load.WorkArgs. Without keys, each is new, and nothing else uses it. */
record Work(int keys, String prefix, boolean skew, double readers) {
    static Work of(JsonNode args) {
        return new Work(args.path("Keys").asInt(), args.get("Prefix").asText(), args.path("Skew").asBoolean(),
                args.path("Readers").asDouble());
    }

    /** Tells whether other callers use the keys, too. */
    boolean wanted() {
        return keys > 0;
    }

    /** Returns the kind of work, which needs its own warm-up. */
    String kind() {
        return (wanted() ? "wanted" : "own") + (readers > 0 ? ", read" : "");
    }

    String key(int slot) {
        return String.format(Locale.ROOT, "%s:%04d", prefix, slot);
    }

    /** Draws one of the keys; with a skew, four of five are from the first fifth. */
    int slot() {
        int few = keys / 5;
        var random = ThreadLocalRandom.current();
        if (!skew || few == 0) {
            return keys == 1 ? 0 : random.nextInt(keys);
        }
        return random.nextInt(5) < 4 ? random.nextInt(few) : few + random.nextInt(keys - few);
    }

    Way.How how() {
        if (readers == 0) {
            return Way.How.MUTEX;
        }
        return ThreadLocalRandom.current().nextDouble() < readers ? Way.How.READ : Way.How.WRITE;
    }
}
