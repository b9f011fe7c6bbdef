package io.locksidecar;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/** The holds of a connection, and how they end without a release. Guarded by the connection's lock. */
final class Holds {
    private final Link link;
    /** Takes tasks that run after the lock is released. */
    private final Consumer<Runnable> after;
    private final Map<Hold.Id, Hold> table = new HashMap<>();
    private final Sites sites = new Sites();
    /** No hold's validity ends before this time. */
    private long soonest = Long.MAX_VALUE;

    Holds(Link link, Consumer<Runnable> after) {
        this.link = link;
        this.after = after;
    }

    Hold get(Hold.Id id) {
        return table.get(id);
    }

    void put(Hold hold) {
        table.put(hold.id, hold);
        sites.put(hold);
    }

    /** Returns a hold of the key that belongs to that thread; null without one. */
    Hold inThread(String key, long thread) {
        return sites.inThread(key, thread);
    }

    /**
     * Returns a hold for which another owner's acquire, made at site, would wait in its own thread; or null. One that may be
     * lost comes first.
     */
    Hold inTheWay(Hold.Id wanted, Site site) {
        Hold first = sites.inTheWay(wanted, site, hold -> true);
        if (first == null || !first.owned()) {
            return first;
        }
        Hold doubtful = sites.inTheWay(wanted, site, hold -> !hold.owned());
        return doubtful != null ? doubtful : first;
    }

    /** Records that a hold's validity was stated. */
    void stated(Hold hold) {
        soonest = Math.min(soonest, hold.valid);
    }

    /** Records that all holds are valid until then. */
    void state(long until) {
        for (Hold hold : table.values()) {
            hold.state(until);
        }
    }

    /** Returns when the first hold's validity may end; never later than it does. */
    long soonest() {
        return soonest;
    }

    /** Ends a hold that is released. */
    void drop(Hold hold) {
        if (table.remove(hold.id, hold)) {
            sites.remove(hold);
        }
        hold.over = true;
    }

    /** Ends a hold that was not released. */
    void lose(Hold hold, String reason) {
        hold.lost = reason;
        drop(hold);
        if (hold.writes + hold.reads > 0) { // otherwise no owner has it, and none would release it
            link.remember(hold);
        }
        if (hold.watcher != null) {
            after.accept(hold.watcher);
        }
        if (hold.tell.length > 0 && !reason.equals("closed")) {
            for (Consumer<LostException> one : hold.tell) {
                after.accept(() -> link.tell(one, hold.loss(reason))); // each listener gets its own exception
            }
        }
        hold.forgetListeners();
    }

    /** Ends all holds. */
    void loseAll(String reason) {
        for (Hold hold : List.copyOf(table.values())) {
            lose(hold, reason);
        }
    }

    /** Ends the holds whose stated validity is over, and returns them. */
    List<Hold> lapse(long now) {
        if (now < soonest) {
            return List.of();
        }
        List<Hold> over = table.values().stream().filter(h -> now >= h.valid).toList();
        over.forEach(h -> lose(h, h.reasonAt(now)));
        soonest = table.values().stream().mapToLong(h -> h.valid).min().orElse(Long.MAX_VALUE);
        return over;
    }
}
