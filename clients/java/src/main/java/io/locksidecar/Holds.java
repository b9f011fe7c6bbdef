package io.locksidecar;

import io.locksidecar.LockException.Code;
import java.lang.ref.WeakReference;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.function.Supplier;

/** The holds of a connection, and how they end without a release. Guarded by the connection's lock. */
final class Holds {
    /** How many quiet releases of holds with listeners are remembered. */
    private static final int QUIET = 1024;

    private final Link link;
    /** Takes tasks that run after the lock is released. */
    private final Consumer<Runnable> after;
    private final Map<Hold.Id, Hold> table = new HashMap<>();
    private final Sites sites = new Sites();
    /** Holds with listeners that were released quietly, by key, owner and fence. The daemon may report a failure. */
    private final Map<Hold.Id, Hold> quiet = new LinkedHashMap<>();
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
        if (!reason.equals("closed")) {
            tell(hold.tell, () -> hold.loss(reason));
        }
        hold.forgetListeners();
    }

    /** Tells listeners of a loss, and the client's own. Each gets an exception of its own. */
    private void tell(Consumer<LostException>[] listeners, Supplier<LostException> loss) {
        for (Consumer<LostException> one : listeners) {
            after.accept(() -> link.tell(one, loss.get()));
        }
        if (link.setup.onLost() != null) {
            after.accept(() -> link.tell(link.setup.onLost(), loss.get()));
        }
    }

    /** Remembers the listeners of a hold that is released quietly. */
    void releasedQuietly(Hold hold) {
        if (hold.tell.length > 0) {
            quiet.put(new Hold.Id(hold.id.key(), hold.id.owner(), hold.fence), hold);
            if (quiet.size() > QUIET) {
                quiet.remove(quiet.keySet().iterator().next());
            }
        }
    }

    /** Reports that a quiet release has failed. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    void releaseFailed(String key, long owner, long fence, boolean unconfirmed, String text) {
        Hold hold = quiet.remove(new Hold.Id(key, owner, fence));
        String reason = unconfirmed ? "unconfirmed" : "gone";
        tell(hold == null ? new Consumer[0] : hold.tell,
                () -> new LostException("the release of \"" + key + "\" failed: " + text, key, fence, reason));
    }

    /** Ends all holds. */
    void loseAll(String reason) {
        for (Hold hold : List.copyOf(table.values())) {
            lose(hold, reason);
        }
        quiet.clear();
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

    /**
     * The place of an acquire that blocks its thread. It serves to detect that a thread would wait for itself.
     *
     * @param thread the thread's number, as in {@link Owner#ofThread}
     * @param inThread the thread itself
     * @param handle what acquires, by its toString; it must not refer to a handle or lease
     * @param bound only this thread can release the hold
     * @param named the caller named an {@link Owner}: any thread that knows the owner may release the hold
     * @param term the hold of the same client's term in whose onElected the thread is; null in none
     */
    record Site(long thread, WeakReference<Thread> inThread, Object handle, boolean bound, boolean named, Hold term) {
        /** Returns a place in the current thread, which has this number, of an acquire by that client. */
        static Site here(Link link, long thread, Object handle, boolean bound, boolean named) {
            Thread here = Thread.currentThread();
            return new Site(thread, new WeakReference<>(here), handle, bound, named, Election.termIn(here, link));
        }

        /** Returns the exception for an acquire that would wait for a hold of its own thread. */
        static LockException alreadyHeld(Hold hold) {
            return new LockException(Code.ALREADY_HELD, "key \"" + hold.id.key()
                    + "\" is already held in this thread by another handle (" + hold.site.handle + ", fence " + hold.fence
                    + "); use that handle, or set LockOptions.owner(...) for both to share the hold");
        }
    }

    /** Holds that have a site, by key and thread, chained through {@link Hold#beside}. A hold is in one of these at a time. */
    private static final class Sites {
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
                Hold.Id site = siteOf(hold);
                Hold one = first.get(site);
                if (one != hold) {
                    first.computeIfPresent(site, (id, other) -> other.without(hold));
                } else if (hold.beside != null) {
                    first.put(site, hold.beside);
                } else {
                    first.remove(site);
                }
            }
        }

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
            boolean inside = hold == null && term != null && term.id.key().equals(wanted.key()) && !site.named()
                    && kind.test(term);
            return inside ? term : hold;
        }
    }

    /**
     * The holds of a client that were lost and that their owners have not released yet. Until then neither the owners nor
     * other handles of the same threads can acquire the key. Holds that nobody can release are no obstacle, and are removed:
     * their threads have ended, or their handles or leases were thrown away.
     */
    static final class Losses {
        private final ReentrantLock mu = new ReentrantLock();
        private final Map<Hold.Id, Hold> lost = new HashMap<>(); // written under mu
        private final Sites sites = new Sites(); // mu: the sites of lost
        private int sweepAt = 64; // mu
        /** The size of lost. */
        private volatile int size;

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
                    List.copyOf(lost.values()).stream().filter(h -> !canBeReleased(h)).forEach(this::drop);
                    sweepAt = Math.max(64, 2 * lost.size());
                }
                size = lost.size();
            } finally {
                mu.unlock();
            }
        }

        private void drop(Hold hold) {
            lost.remove(hold.id, hold);
            sites.remove(hold);
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
            if (size == 0) {
                return null;
            }
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
         * Returns the exception for an acquire of these by an owner that has lost one of them. The same applies if another
         * handle of the thread at site has lost one; site may be null. Returns null if there is no such hold.
         */
        LostException refusal(Hold.Id[] ids, Site site) {
            if (size == 0) {
                return null;
            }
            mu.lock();
            try {
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
                return null;
            } finally {
                mu.unlock();
            }
        }

        /** Returns the number of holds that are remembered. */
        int size() {
            return size;
        }

        void remove(Hold hold) {
            mu.lock();
            try {
                drop(hold);
                size = lost.size();
            } finally {
                mu.unlock();
            }
        }
    }
}
