package io.locksidecar;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Holds that were lost and that their owners have not released yet. Until then the owners cannot acquire the key again.
 * The holds of owners that cannot release, such as threads that have ended, are removed.
 */
final class Losses {
    private final ReentrantLock mu = new ReentrantLock();
    private final Map<Hold.Id, Hold> lost = new HashMap<>(); // mu
    private int sweepAt = 64; // mu

    void add(Hold hold) {
        if (hold.keeper == null) {
            return;
        }
        mu.lock();
        try {
            lost.put(hold.id, hold);
            if (lost.size() >= sweepAt) {
                lost.values().removeIf(h -> !keeps(h.keeper.get()));
                sweepAt = Math.max(64, 2 * lost.size());
            }
        } finally {
            mu.unlock();
        }
    }

    private static boolean keeps(Object keeper) {
        return keeper instanceof Thread t ? t.isAlive() : keeper != null;
    }

    /** Returns the first lost hold with one of these ids; null if there is none. */
    Hold find(Hold.Id... ids) {
        mu.lock();
        try {
            if (!lost.isEmpty()) {
                for (Hold.Id id : ids) {
                    Hold hold = lost.get(id);
                    if (hold != null) {
                        return hold;
                    }
                }
            }
            return null;
        } finally {
            mu.unlock();
        }
    }

    void remove(Hold hold) {
        mu.lock();
        try {
            lost.remove(hold.id, hold);
        } finally {
            mu.unlock();
        }
    }
}
