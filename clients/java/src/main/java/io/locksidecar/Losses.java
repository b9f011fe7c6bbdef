package io.locksidecar;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Holds that were lost and that their owners have not released yet. Until then neither the owners nor other handles of the
 * same threads can acquire the key. Holds that nobody can release are no obstacle, and are removed: their threads have ended,
 * or their handles or leases were thrown away.
 */
final class Losses {
    private final ReentrantLock mu = new ReentrantLock();
    private final Map<Hold.Id, Hold> lost = new HashMap<>(); // mu
    private final Sites sites = new Sites(); // mu: the sites of lost
    private int sweepAt = 64; // mu

    void add(Hold hold) {
        if (hold.keeper == null && hold.site == null) {
            return;
        }
        mu.lock();
        try {
            Hold before = lost.put(hold.id, hold);
            if (before != null) {
                sites.remove(before);
            }
            sites.put(hold);
            if (lost.size() >= sweepAt) {
                lost.values().removeIf(h -> {
                    boolean remove = !canBeReleased(h);
                    if (remove) {
                        sites.remove(h);
                    }
                    return remove;
                });
                sweepAt = Math.max(64, 2 * lost.size());
            }
        } finally {
            mu.unlock();
        }
    }

    private static boolean canBeReleased(Hold hold) {
        return (hold.keeper == null || keeps(hold.keeper.get()))
                && (hold.site == null || keeps(hold.site.inThread().get()))
                && (hold.by == null || hold.by.get() != null);
    }

    private static boolean keeps(Object keeper) {
        return keeper instanceof Thread t ? t.isAlive() : keeper != null;
    }

    /** Returns the lost hold of an owner that can be named; null if there is none. */
    Hold find(Hold.Id id) {
        mu.lock();
        try {
            return get(id);
        } finally {
            mu.unlock();
        }
    }

    private Hold get(Hold.Id id) {
        Hold hold = lost.get(id);
        return hold == null || hold.keeper == null ? null : hold;
    }

    /**
     * Returns the exception for an acquire of these by an owner that has lost one of them. The same applies if another handle
     * of the thread at site has lost one; site may be null. Returns null if there is no such hold.
     */
    LostException refusal(Hold.Id[] ids, Site site) {
        mu.lock();
        try {
            if (!lost.isEmpty()) {
                for (Hold.Id id : ids) {
                    Hold own = get(id);
                    if (own != null) {
                        return own.lossAgain();
                    }
                    Hold other = site == null ? null : sites.inTheWay(id, site, h -> h.lost != null && canBeReleased(h));
                    if (other != null) {
                        return other.lossInThread();
                    }
                }
            }
            return null;
        } finally {
            mu.unlock();
        }
    }

    /** Returns the number of holds that are remembered. */
    int size() {
        mu.lock();
        try {
            return lost.size();
        } finally {
            mu.unlock();
        }
    }

    void remove(Hold hold) {
        mu.lock();
        try {
            lost.remove(hold.id, hold);
            sites.remove(hold);
        } finally {
            mu.unlock();
        }
    }
}
