package io.locksidecar;

import io.locksidecar.LockException.Code;
import io.locksidecar.Requests.ReleaseResult;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
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
    static final class Id {
        /** Replaces the fence of a permit that is not granted yet. */
        private static final long ASKED = -1;

        final String key;
        final long owner;
        final long permit;
        private final int hash;

        Id(String key, long owner, long permit) {
            this.key = key;
            this.owner = owner;
            this.permit = permit;
            this.hash = 31 * (31 * key.hashCode() + Long.hashCode(owner)) + Long.hashCode(permit);
        }

        // A record's own methods take several times as long until the second compiler has seen them.

        @Override
        public boolean equals(Object o) {
            return o instanceof Id i && hash == i.hash && owner == i.owner && permit == i.permit && key.equals(i.key);
        }

        @Override
        public int hashCode() {
            return hash;
        }

        /** Returns the id of a lock's hold. */
        static Id lock(String key, long owner) {
            return new Id(key, owner, 0);
        }

        /** Returns the id of a requested hold until it is granted. */
        static Id asked(Keys keys, int i, long owner) {
            return new Id(keys.text[i], owner, keys.permits > 0 ? ASKED : 0);
        }
    }

    final Conn conn;
    /** Changes when a permit is granted. */
    Id id;
    /** The key in UTF-8. */
    final byte[] name;
    /** The thread or Owner that must be told of a loss when it unlocks; null for a lease that has no other name. */
    final WeakReference<?> keeper;
    /** The place where it was acquired, if one thread is expected to release it; else null. */
    final Holds.Site site;
    /** Its key and the thread of the site; null without a site. */
    final Id inThread;
    /** For how many milliseconds after the grant it is kept, even if it is released; 0 if it is not kept. */
    final long keep;
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
    /** The listeners to be told of the loss, each once. */
    List<Consumer<LostException>> listeners = List.of();

    /** Runs at every loss, even when the client is closed; at once, on any thread. It must not block. */
    Runnable watcher;

    /** Makes the hold of a key that an acquire asks for. */
    Hold(Conn conn, Acquire asked, int key) {
        Acquire.Terms terms = asked.terms;
        this.conn = conn;
        this.id = asked.ids[key];
        this.name = terms.keys().utf8[key];
        this.shared = terms.options().shared;
        this.fixed = terms.options().fixed;
        this.keep = terms.options().keep;
        this.keeper = terms.keeper();
        this.site = terms.site() == null || terms.site().named() ? null : terms.site();
        this.inThread = site == null ? null : Id.lock(id.key, site.thread());
    }

    /** Records what can release it: the lease alone, unless its owner has a name or is the thread. */
    void leased(Object lease) {
        if (site != null && !site.bound()) {
            by = new WeakReference<>(lease);
        }
    }

    boolean isPermit() {
        return id.permit != 0;
    }

    /** Returns how often its owner acquired it in a mode. */
    int count(boolean asShared) {
        conn.mu.lock();
        try (conn.mu) {
            return asShared ? reads : writes;
        }
    }

    /** Returns the flags for the release of a grant that no acquire took: it must not be kept either. */
    int unwanted() {
        return keep == 0 ? 0 : Codes.NOW;
    }

    /** Adds to the count of its owner's acquires in a mode; {@code by} is negative for releases. */
    void count(boolean asShared, int by) {
        writes += asShared ? 0 : by;
        reads += asShared ? by : 0;
    }

    /** Records that the daemon has stated the hold to be valid until this time. Never shortens the validity. */
    void state(long until) {
        long v = Math.max(until, valid);
        valid = end == 0 ? v : Math.min(v, end);
    }

    /** Tells whether it is held now, by the validity that was stated. Never blocks. */
    boolean owned() {
        return !over && conn.dead == null && BootClock.SYSTEM.now() < valid;
    }

    /**
     * Tells a program whether it is held now. A hold whose validity is over is lost from then on. Before that, this waits for a
     * short time until all messages that have arrived were read, because one may extend the validity.
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
        return held() ? Math.max(1, valid - BootClock.SYSTEM.now()) : 0; // at least 1, because 0 means lost
    }

    /** Returns the reason for a loss that the client itself notices at that time of its clock. */
    String reasonAt(long now) {
        return end == 0 || now < end ? "silence" : fixed ? "fixed_end" : "too_long";
    }

    /** Returns the time until its end, zero if it is over; empty if it has no end. */
    Optional<Duration> untilEnd() {
        long e = end;
        return e == 0 ? Optional.empty()
                : Optional.of(Duration.ofNanos(held() ? Math.max(1, e - BootClock.SYSTEM.now()) : 0));
    }

    /** Throws unless it is held. */
    void check() {
        if (!held()) {
            throw notHeld();
        }
    }

    NotHeldException notHeld() {
        String why = lost;
        return why != null ? loss(why) : new NotHeldException(this + " is not held by this owner");
    }

    // ---- requests, each of which waits for its answer ----

    /**
     * Releases one acquire, with these flags of a release; false if the caller does not have it. Throws a loss. Waits for the
     * answer unless the release is quiet. Does not throw if it is not confirmed, because the work was done under the lock.
     */
    boolean release(boolean asShared, int flags) {
        held();
        Object left = conn.requests.release(this, asShared, flags, null);
        if (left == ReleaseResult.LOST) {
            throw notHeld();
        }
        if (flags != Codes.QUIET && left instanceof Call c) {
            logUnconfirmed(answer(c), c.frees);
        }
        return left != ReleaseResult.NOT_OWNED;
    }

    /**
     * Logs that a release was not confirmed, and throws any other failure. {@code why} is null if there is none. {@code frees}
     * means that the release frees a kept lock. If it was not answered, this throws, too: the lock may stay taken. An
     * unconfirmed release has a cause only if it was not answered.
     */
    static void logUnconfirmed(LockException why, boolean frees) {
        if (why != null && why.code() == Code.UNKNOWN && !(frees && why.getCause() != null)) {
            Link.LOG.log(System.Logger.Level.INFO, why.getMessage());
        } else if (why != null) {
            throw why.here();
        }
    }

    /** Sends a renewal. With a ttl of 0, the TTL stays the same. */
    Call renew(long ttl) {
        Call c = new Call(Codes.RENEW, null, null, this);
        conn.requests.send(c, name, id.owner, fence, ttl);
        return c;
    }

    /** Waits for the answer of a call about this hold, and throws its failure. */
    void must(Call c) {
        LockException why = answer(c);
        if (why != null) {
            throw why.here();
        }
    }

    /** Waits for the answer of a call about this hold, and returns its failure, or null. */
    LockException answer(Call c) {
        if (c.awaitUninterruptibly(System.nanoTime() + conn.link.setup.timeout())) {
            return failure(c);
        }
        return isRelease(c) ? unconfirmed(conn.link.silent()) : conn.link.silent();
    }

    private static boolean isRelease(Call c) {
        return c.op == Codes.RELEASE || c.op == Codes.RELEASE_MANY;
    }

    private static LockException unconfirmed(LockException why) {
        return new LockException(Code.UNKNOWN, why.getMessage() + "; the release has been sent", why);
    }

    /** Returns the failure of a call about this hold that has ended, or null. */
    LockException failure(Call c) {
        Answer a = c.answer;
        boolean release = isRelease(c);
        String why = lost;
        if (c.failedWith(Code.CLOSED) && !c.frees) { // the end of the connection also releases
            return release ? null : why != null ? loss(why) : a.error();
        }
        if (a.error() != null) {
            return release && a.error() instanceof UnavailableException ? unconfirmed(a.error()) : a.error();
        }
        if (a.code() == Codes.NOT_HELD) {
            return loss(why == null ? "gone" : why);
        }
        if (a.code() != Codes.OK) {
            return conn.link.failure(a);
        }
        if (!release && why != null) {
            return loss(why); // it was lost during the wait for the answer
        }
        return c.codes == null ? null : failureOfSeveral(c);
    }

    /** Returns the first failure of a release-many that was answered, a loss before others; or null. */
    private static LockException failureOfSeveral(Call c) {
        LockException first = null;
        for (int i = 0; i < c.codes.length; i++) {
            Hold hold = c.holds[i];
            if (c.codes[i] == Codes.NOT_HELD) {
                return hold.loss("gone");
            }
            if (c.codes[i] != Codes.OK && first == null) {
                first = hold.conn.link.failure(new Answer(c.codes[i], "released", 0, null).of(hold.id.key));
            }
        }
        return first;
    }

    // ---- losses ----

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
        return new LostException(this + " was lost: " + lost + "; its handle (" + site.handle() + ", fence " + fence
                        + ") must release it before this thread can acquire it again",
                id.key, fence, lost);
    }

    /** Returns its name in messages. */
    @Override
    public String toString() {
        return (isPermit() ? "permit of \"" : "lock \"") + id.key + '"';
    }

    /** Adds a listener of the loss, once. If the hold is lost already, tells the listener at once. */
    void listen(Consumer<LostException> listener) {
        String why;
        conn.mu.lock();
        try (conn.mu) {
            why = lost;
            if (why == null && listeners.stream().noneMatch(one -> one == listener)) {
                listeners = new ArrayList<>(listeners);
                listeners.add(listener);
            }
        }
        if (why != null && !why.equals("closed")) {
            conn.link.tell(listener, loss(why));
        }
    }

    /**
     * Forgets the listeners of the loss, because they may refer to the lease that could release it. The connection's
     * lock is held.
     */
    void forgetListeners() {
        listeners = List.of();
        watcher = null;
    }

    /** Removes a listener, but not after the last release: the listener may still be told that the release has failed. */
    void unlisten(Consumer<LostException> listener) {
        conn.mu.lock();
        try (conn.mu) {
            listeners = over ? listeners : listeners.stream().filter(one -> one != listener).toList();
        }
    }
}
