package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.lang.ref.WeakReference;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.stream.Stream;

/** The holds of a connection, and how they end without a release. Guarded by the connection's lock. */
final class Holds {
    /** The maximum number of remembered quiet releases of holds with listeners. */
    private static final int QUIET = 1024;

    private final Link link;
    /** Takes tasks that run after the lock is released. */
    private final Consumer<Runnable> after;
    final Table table = new Table();
    /** Holds with listeners that were released quietly, by key, owner and fence. The daemon may report a failure. */
    private final Map<Hold.Id, Hold> quiet = new LinkedHashMap<>();
    /** No hold's validity ends before this time. */
    long soonest = Long.MAX_VALUE;

    Holds(Link link, Consumer<Runnable> after) {
        this.link = link;
        this.after = after;
    }

    /**
     * Returns a hold of its own thread for which an acquire by another owner, made at a site, would wait; or null. Prefers a
     * hold that may be lost.
     */
    Hold inTheWay(Hold.Id wanted, Site site) {
        Hold any = table.inTheWay(wanted, site, hold -> true);
        Hold doubtful = any == null ? null : table.inTheWay(wanted, site, hold -> !hold.owned());
        return doubtful != null ? doubtful : any;
    }

    /** Records that a hold's validity was stated. */
    void stated(Hold hold) {
        soonest = Math.min(soonest, hold.valid);
    }

    /** Records that all holds are valid until then. */
    void state(long until) {
        table.all.values().forEach(hold -> hold.state(until));
    }

    /** Ends a hold that is released. */
    void drop(Hold hold) {
        table.remove(hold);
        hold.over = true;
    }

    /** Ends a hold that was not released. */
    void lose(Hold hold, String reason) {
        hold.lost = reason;
        drop(hold);
        if (hold.writes + hold.reads > 0) { // otherwise no owner has learned of it, and none would release it
            link.losses.add(hold);
        }
        if (hold.watcher != null) {
            after.accept(hold.watcher);
        }
        if (!reason.equals("closed")) {
            tell(hold.listeners, () -> hold.loss(reason));
        }
        hold.forgetListeners();
    }

    /** Tells listeners of a loss, and the client's own. Each gets an exception of its own. */
    private void tell(List<Consumer<LostException>> listeners, Supplier<LostException> loss) {
        for (Consumer<LostException> one : listeners) {
            after.accept(() -> link.tell(one, loss.get()));
        }
        if (link.setup.onLost() != null) {
            after.accept(() -> link.tell(link.setup.onLost(), loss.get()));
        }
    }

    /** Remembers the listeners of a hold that is released quietly. */
    void releasedQuietly(Hold hold) {
        if (!hold.listeners.isEmpty()) {
            quiet.put(new Hold.Id(hold.id.key, hold.id.owner, hold.fence), hold);
            if (quiet.size() > QUIET) {
                quiet.remove(quiet.keySet().iterator().next());
            }
        }
    }

    /** Reports that a quiet release has failed; the id has the fence. */
    void releaseFailed(Hold.Id id, boolean unconfirmed, String text) {
        Hold hold = quiet.remove(id);
        String reason = unconfirmed ? "unconfirmed" : "gone";
        tell(hold == null ? List.of() : hold.listeners,
                () -> new LostException("the release of \"" + id.key + "\" failed: " + text, id.key, id.permit, reason));
    }

    /** Ends all holds. */
    void loseAll(String reason) {
        for (Hold hold : List.copyOf(table.all.values())) {
            lose(hold, reason);
        }
        quiet.clear();
    }

    /** Ends the holds whose stated validity is over, and returns them. */
    List<Hold> lapse(long now) {
        List<Hold> over = table.all.values().stream().filter(h -> now >= h.valid).toList();
        over.forEach(h -> lose(h, h.reasonAt(now)));
        soonest = table.all.values().stream().mapToLong(h -> h.valid).min().orElse(Long.MAX_VALUE);
        return over;
    }

    /**
     * The thread and the handle of an acquire that blocks its thread. They are needed to detect a thread that would wait for
     * itself.
     *
     * @param thread the thread's number, as in {@link Owner#ofThread}
     * @param inThread the thread itself
     * @param handle names the handle or lease in messages, by its toString; it must not refer to the handle or lease itself
     * @param bound only this thread can release the hold
     * @param named the caller named an {@link Owner}: any thread that knows the owner may release the hold
     * @param term the hold of the term whose onElected runs in this thread, of the same client; null if none does
     */
    record Site(long thread, WeakReference<Thread> inThread, Object handle, boolean bound, boolean named, Hold term) {
        /** Returns the exception for an acquire that would wait for a hold of its own thread. */
        static LockException alreadyHeld(Hold hold) {
            return new LockException(Code.ALREADY_HELD, "key \"" + hold.id.key
                    + "\" is already held in this thread by another handle (" + hold.site.handle + ", fence " + hold.fence
                    + "); use that handle, or set LockOptions.owner(...) for both to share the hold");
        }
    }

    /** Holds by id, and those that have a site also by key and thread, the newest first. A hold is in one table at a time. */
    static final class Table {
        private final Map<Hold.Id, Hold> all = new HashMap<>();
        private final Map<Hold.Id, List<Hold>> bySite = new HashMap<>();

        Hold get(Hold.Id id) {
            return all.get(id);
        }

        /** Adds a hold, in place of one with the same id. */
        void put(Hold hold) {
            Hold before = all.put(hold.id, hold);
            if (before != null) {
                removeSite(before);
            }
            if (hold.site != null) {
                bySite.merge(hold.inThread, List.of(hold), (old, one) -> Stream.of(one, old).flatMap(List::stream).toList());
            }
        }

        /** Removes a hold, if it is here. */
        void remove(Hold hold) {
            all.remove(hold.id, hold);
            removeSite(hold);
        }

        private void removeSite(Hold hold) {
            if (hold.site != null) {
                List<Hold> some = bySite.remove(hold.inThread);
                if (some != null && (some.size() > 1 || some.get(0) != hold)) {
                    bySite.put(hold.inThread, some.stream().filter(one -> one != hold).toList());
                }
            }
        }

        List<Hold> inThread(String key, long thread) {
            return bySite.isEmpty() ? Collections.emptyList() : bySite.getOrDefault(Hold.Id.lock(key, thread), List.of());
        }

        /**
         * Returns a hold of this kind for which another owner's acquire, made at site, would wait in its own thread; null
         * without one. The hold of a term counts, too, which ends only after the thread.
         */
        Hold inTheWay(Hold.Id wanted, Site site, Predicate<Hold> kind) {
            for (Hold hold : inThread(wanted.key, site.thread())) {
                if (hold.id.owner != wanted.owner && (hold.site.bound() || !site.named()) && kind.test(hold)) {
                    return hold;
                }
            }
            Hold term = site.term();
            boolean inside = term != null && term.id.key.equals(wanted.key) && !site.named() && kind.test(term);
            return inside ? term : null;
        }
    }

    /**
     * The holds of a client that were lost and that their owners have not released yet. Until then neither the owners nor
     * other handles of the same threads can acquire the key. Holds that nobody can release any more do not count, and are
     * removed: their threads have ended, or their handles or leases were garbage-collected.
     */
    static final class Losses {
        private final Mutex mu = new Mutex();
        private final Table lost = new Table(); // mu
        private int sweepAt = 64; // mu
        /** The number of holds that are remembered. */
        volatile int size;

        void add(Hold hold) {
            if (hold.keeper == null && hold.site == null) {
                return;
            }
            mu.lock();
            try (mu) {
                lost.put(hold);
                if (lost.all.size() >= sweepAt) {
                    List.copyOf(lost.all.values()).stream().filter(h -> !canBeReleased(h)).forEach(lost::remove);
                    sweepAt = Math.max(64, 2 * lost.all.size());
                }
                size = lost.all.size();
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

        /** Returns a lost hold by its id; null if there is none, or if only its lease could release it. */
        Hold find(Hold.Id id) {
            if (size == 0) {
                return null;
            }
            mu.lock();
            try (mu) {
                Hold hold = lost.get(id);
                return hold == null || hold.keeper == null ? null : hold;
            }
        }

        /**
         * Returns the exception for an acquire of these by an owner that has lost one of them. The same applies if another
         * handle of the thread at site has lost one; site may be null. Returns null if there is no such hold.
         */
        LostException refusal(Hold.Id[] ids, Site site) {
            if (size == 0) {
                return null;
            }
            mu.lock();
            try (mu) {
                for (Hold.Id id : ids) {
                    Hold own = find(id);
                    if (own != null) {
                        return own.lossAgain();
                    }
                    Hold other = site == null ? null : lost.inTheWay(id, site, h -> h.lost != null && canBeReleased(h));
                    if (other != null) {
                        return other.lossInThread();
                    }
                }
                return null;
            }
        }

        void remove(Hold hold) {
            mu.lock();
            try (mu) {
                lost.remove(hold);
                size = lost.all.size();
            }
        }
    }
}
