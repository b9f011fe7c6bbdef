package io.locksidecar;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Holds that were lost and whose owners have not heard of it, since they do at the unlock. Those of owners who
 * never will, threads that have ended say, are thrown away.
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

    Hold find(Hold.Id id) {
        mu.lock();
        try {
            return lost.get(id);
        } finally {
            mu.unlock();
        }
    }

    /** Forgets what an owner has lost, but not the hold that it has now. */
    void removeOthers(Hold hold) {
        mu.lock();
        try {
            lost.computeIfPresent(hold.id, (id, h) -> h == hold ? h : null);
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
