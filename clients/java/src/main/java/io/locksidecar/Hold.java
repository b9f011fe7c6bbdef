package io.locksidecar;

import java.lang.ref.WeakReference;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/**
 * One owner's possession of one key: the grant of the daemon, its validity, and how often its owner has acquired it.
 * The connection's lock guards the fields; volatile ones may be read without it.
 */
final class Hold {
    /**
     * The identity of a hold on a connection, and in a client. An owner has a key's lock once, but may have several
     * permits of its semaphore. permit is the fence of a permit, and 0 for a lock.
     */
    record Id(String key, long owner, long permit) {
        /** Replaces the fence of a permit that is not granted yet. */
        private static final long ASKED = -1;

        /** Returns the id of a lock's hold. */
        static Id lock(String key, long owner) {
            return new Id(key, owner, 0);
        }

        /** Returns the id of a requested hold until it is granted. */
        static Id asked(Keys keys, int i, long owner) {
            return new Id(keys.text(i), owner, keys.permits() > 0 ? ASKED : 0);
        }
    }

    final Conn conn;
    final Id id;
    /** The key in UTF-8. */
    final byte[] name;
    /** The thread or Owner that must be told of a loss when it unlocks; null for a lease that has no other name. */
    final WeakReference<?> keeper;
    /** The place where it was acquired, if one thread is expected to release it; else null. */
    final Site site;
    /** The next hold of the same key and thread; see {@link Sites}. */
    Hold beside;
    /** The handle or lease that alone can release it; null if others can, or before it is known. */
    volatile WeakReference<?> by;

    volatile long fence;
    volatile boolean shared;
    /** Acquired as fixed. A re-entry does not change that. */
    final boolean fixed;
    /** The end of the stated validity, in nanoseconds of this process's clock. */
    volatile long valid;
    /** The end of the hold in the same clock, whatever a keepalive states; 0 for never. */
    volatile long end;
    /** How often the daemon granted it. The client itself counts re-entries. */
    int grants;
    /** How often its owner has acquired it, by mode. */
    int writes;
    int reads;
    /** Released or lost: no longer in the table. Set last. */
    volatile boolean over;
    /** The reason, once it was lost. */
    volatile String lost;
    /** Are told of the loss, each once. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    Consumer<LostException>[] tell = new Consumer[0];

    /** Is told of every loss, even when the client is closed; at once, on any thread, and must not block. */
    Runnable watcher;

    private CompletableFuture<LostException> stage;

    Hold(Conn conn, Id id, byte[] name, boolean shared, boolean fixed, WeakReference<?> keeper, Site site) {
        this.conn = conn;
        this.id = id;
        this.name = name;
        this.shared = shared;
        this.fixed = fixed;
        this.keeper = keeper;
        this.site = site;
    }

    /** Records what can release it: the lease alone, unless its owner has a name or is the thread. */
    void leased(Object lease) {
        if (site != null && !site.bound()) {
            by = new WeakReference<>(lease);
        }
    }

    /** Removes another hold from the chain that begins here, and returns this; see {@link #beside}. */
    Hold without(Hold other) {
        for (Hold h = this; h.beside != null; h = h.beside) {
            if (h.beside == other) {
                h.beside = other.beside;
                break;
            }
        }
        return this;
    }

    boolean isPermit() {
        return id.permit != 0;
    }

    /** Returns the hold of a granted permit that was requested as this. */
    Hold permit(long permit) {
        Hold hold = new Hold(conn, new Id(id.key, id.owner, permit), name, false, fixed, null, null);
        hold.fence = permit;
        return hold;
    }

    /** Returns how often its owner acquired it in a mode. */
    int count(boolean asShared) {
        conn.mu.lock();
        try {
            return asShared ? reads : writes;
        } finally {
            conn.mu.unlock();
        }
    }

    /** Counts an acquire. */
    void enter(boolean asShared) {
        if (asShared) {
            reads++;
        } else {
            writes++;
        }
    }

    /** Records that the hold is valid until then. Earlier statements stay true. */
    void state(long until) {
        long v = Math.max(until, valid);
        valid = end == 0 ? v : Math.min(v, end);
    }

    /** Tells whether it is held now, by everything that was stated. */
    boolean owned() {
        return !over && conn.dead == null && BootClock.SYSTEM.now() < valid;
    }

    /**
     * Tells a program whether it is held now. A hold that has run out is lost from then on. If a message that has
     * arrived may decide, this waits for a short time until it was read.
     */
    boolean held() {
        if (owned()) {
            return true;
        }
        if (!over) {
            conn.settle();
            conn.lapse(this);
        }
        return owned();
    }

    /** Returns for how many nanoseconds it is certainly held; 0 if it is not. */
    long remaining() {
        return held() ? Math.max(1, valid - BootClock.SYSTEM.now()) : 0; // 0 would mean that it is lost
    }

    /** Returns the reason for a loss that the client itself notices at that time of its clock. */
    String reasonAt(long now) {
        return end == 0 || now < end ? "silence" : fixed ? "fixed_end" : "too_long";
    }

    /** Returns the nanoseconds until its end, 0 if it is over; null if it has no end. */
    Long untilEnd() {
        long e = end;
        return e == 0 ? null : (Long) (held() ? Math.max(1, e - BootClock.SYSTEM.now()) : 0);
    }

    LostException loss(String reason) {
        return new LostException(this + " was lost: " + reason, id.key, fence, reason);
    }

    /** Returns the exception for an acquire by its owner, who has not released it since the loss. */
    LostException lossAgain() {
        return new LostException(this + " was lost: " + lost + "; its owner must release it before it can acquire it again",
                id.key, fence, lost);
    }

    /** Returns the exception for an acquire in its thread through another handle. */
    LostException lossInThread() {
        return new LostException(
                this + " was lost: " + lost + "; its handle (" + site.handle() + ", fence " + fence
                        + ") must release it before this thread can acquire it again",
                id.key, fence, lost);
    }

    /** Returns its name in messages. */
    @Override
    public String toString() {
        return (isPermit() ? "permit of \"" : "lock \"") + id.key + '"';
    }

    /** Returns the stage that a loss completes; the connection's lock is held. */
    CompletableFuture<LostException> stage() {
        if (stage == null) {
            stage = new CompletableFuture<>();
            if (lost == null) {
                listen(stage::complete);
            }
        }
        return stage;
    }

    /** Adds a listener of the loss, unless it is there. The connection's lock is held. */
    void listen(Consumer<LostException> listener) {
        for (Consumer<LostException> one : tell) {
            if (one == listener) {
                return;
            }
        }
        tell = Arrays.copyOf(tell, tell.length + 1);
        tell[tell.length - 1] = listener;
    }

    /**
     * Forgets the listeners of the loss, because they may refer to the lease that could release it. The connection's
     * lock is held.
     */
    @SuppressWarnings({"unchecked", "rawtypes"})
    void forgetListeners() {
        tell = new Consumer[0];
        watcher = null;
    }

    /** Removes a listener. The connection's lock is held. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    void unlisten(Consumer<LostException> listener) {
        tell = Arrays.stream(tell).filter(one -> one != listener).toArray(Consumer[]::new);
    }
}
