package io.locksidecar;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Predicate;

/** Holds that have a site, by key and thread, chained through {@link Hold#beside}. A hold is in one of these at a time. */
final class Sites {
    private final Map<Hold.Id, Hold> first = new HashMap<>();

    private static Hold.Id siteOf(Hold hold) {
        return Hold.Id.lock(hold.id.key(), hold.site.thread());
    }

    /** Adds a hold, if it has a site. */
    void put(Hold hold) {
        if (hold.site != null) {
            hold.beside = first.put(siteOf(hold), hold);
        }
    }

    /** Removes a hold, if it is here. */
    void remove(Hold hold) {
        if (hold.site != null) {
            first.computeIfPresent(siteOf(hold), (id, one) -> one == hold ? hold.beside : one.without(hold));
        }
    }

    /** Returns a hold of the key that belongs to that thread; null without one. */
    Hold inThread(String key, long thread) {
        return first.get(Hold.Id.lock(key, thread));
    }

    /**
     * Returns a hold of this kind for which another owner's acquire, made at site, would wait in its own thread; null
     * without one. The hold of a term counts, too, which ends only after the thread.
     */
    Hold inTheWay(Hold.Id wanted, Site site, Predicate<Hold> kind) {
        Hold hold = inThread(wanted.key(), site.thread());
        while (hold != null
                && (hold.id.owner() == wanted.owner() || !hold.site.bound() && site.named() || !kind.test(hold))) {
            hold = hold.beside;
        }
        Hold term = site.term();
        boolean inside = hold == null && term != null && term.id.key().equals(wanted.key()) && !site.named() && kind.test(term);
        return inside ? term : hold;
    }
}
