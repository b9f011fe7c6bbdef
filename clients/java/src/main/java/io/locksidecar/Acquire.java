package io.locksidecar;

import io.locksidecar.Holds.Site;
import io.locksidecar.LockException.Code;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.AtomicReferenceFieldUpdater;
import java.util.function.Consumer;
import java.util.stream.IntStream;

/**
 * One acquire, of one key or of several at once, from its beginning to its outcome. It continues after restarts of the daemon
 * for as long as its wait allows, but only for a short time if each new connection ends at once or the daemon drains. Each of
 * its events is handled on the thread that brings the event, without blocking; only the methods that await the outcome block.
 * The outcome is set once. So a caller that gives up learns whether the grant came first.
 */
final class Acquire extends Wait implements Consumer<Object> {
    /** How often in a row a new connection may end at once, or a grant arrive after its validity. */
    private static final int CUTS = 3;
    /** The time for connecting, in nanoseconds, above which it is subtracted from the wait. */
    private static final long NOTABLE = 20_000_000;
    /** The outcome if another owner holds the lock. {@code at} is the position of that key among several, or -1. */
    record Busy(int at) {}

    private static final Object GIVEN_UP = new Object();
    private static final AtomicReferenceFieldUpdater<Acquire, Object> OUTCOME =
            AtomicReferenceFieldUpdater.newUpdater(Acquire.class, Object.class, "outcome");

    /**
     * The terms of an acquire.
     *
     * @param waiting the longest wait in milliseconds, 0 for a try; negative without bound
     * @param keeper as in {@link Hold#keeper}
     * @param site the place where it blocks its thread; null if it does not, or asks for a permit
     * @param trace the traceparent of the caller; null if there is none
     */
    record Terms(
            Keys keys, long owner, long waiting, LockOptions options, WeakReference<?> keeper, Site site, byte[] trace) {}

    private final Link link;
    final Terms terms;
    /** The ids of the holds of the keys. */
    final Hold.Id[] ids;
    /** Is called with the outcome, on any thread, and must not block; null if a thread waits. */
    final Runnable then;
    /** System.nanoTime at the end of the wait; null without bound. */
    private final Long end;

    /** A Hold for each key, Busy, GIVEN_UP, or a LockException. */
    volatile Object outcome;
    private volatile Call call;

    // Only the thread that brings the next event uses these. Each event happens-after the previous one.
    private volatile long began;
    private long left;
    /**
     * The shared holds of the keys that the acquire's own thread has through other handles, at the positions of the keys; null
     * without any. A writer may wait for such a hold. This acquire must not wait behind that writer, because its own thread
     * would then wait for itself.
     */
    Hold[] inTheWay;
    private int cuts;
    private Long drained;
    private long pause = 10;

    /** The acquire of the other keys, until all can be acquired; see {@link #busy}. */
    private final AtomicReference<Acquire> rest = new AtomicReference<>();

    /**
     * Makes an acquire. Its owner is the first of these that exists: the owner that the options name, handleOwner, the current
     * thread if the options say that it is the owner, or a new owner.
     *
     * @param by names the handle or lease in messages, by its toString
     * @param thread the number of the current thread
     * @param handleOwner the owner that the handle has in the current thread; null for leases, and if the options decide
     * @param then is called with the outcome; null if the current thread is about to wait for it
     */
    static Acquire of(
            Link link, Keys keys, LockOptions options, long wait, Object by, long thread, Long handleOwner, Runnable then) {
        if (keys.several() && options.keep != 0) { // the protocol has no such field, and the daemon would ignore it
            throw new LockException(Code.INVALID, keys + ": only a lock of one key can be kept");
        }
        boolean named = options.owner != null;
        boolean bound = handleOwner != null || options.byThread;
        long owner = named ? options.owner.number : handleOwner != null ? handleOwner : bound ? thread : Owner.next();
        Thread here = Thread.currentThread();
        Site site = new Site(thread, new WeakReference<>(here), by, bound, named, Election.termIn(here, link));
        WeakReference<?> keeper = named ? new WeakReference<>(options.owner) : bound ? site.inThread() : null;
        boolean permit = keys.permits > 0; // its lease reports a loss, and it never waits for another hold of its thread
        return new Acquire(link, new Terms(
                keys, owner, wait, options, permit ? null : keeper, then != null || permit ? null : site, link.trace()), then);
    }

    private Acquire(Link link, Terms terms, Runnable then) {
        this.link = link;
        this.terms = terms;
        this.ids = new Hold.Id[terms.keys.text.length];
        for (int i = 0; i < ids.length; i++) {
            ids[i] = Hold.Id.asked(terms.keys, i, terms.owner);
        }
        this.then = then;
        this.left = terms.waiting;
        this.end = terms.waiting < 0 ? null : System.nanoTime() + terms.waiting * 1_000_000;
    }

    /** Returns the wait to request, in milliseconds: 0 for a try while another hold of its own thread may block it. */
    long left() {
        return inTheWay != null ? 0 : left;
    }

    @Override
    Conn conn() {
        Call c = call;
        return c == null ? null : c.conn();
    }

    /** Begins to acquire, or begins again. */
    void start() {
        LostException loss = done() || link.closed ? null : link.lossOf(this);
        if (loss != null) {
            finish(loss);
        } else if (!done()) {
            began = System.nanoTime();
            long patience = began + link.setup.patience();
            long until = end == null || end - patience > 0 ? patience : end;
            link.dial(until, this);
        }
    }

    /** Continues with a connection, or ends with the exception for which there is none. */
    @Override
    public void accept(Object made) {
        if (made instanceof Conn conn) {
            connected(conn);
        } else {
            finish(made);
        }
    }

    /** Asks the daemon, on this connection. */
    void connected(Conn conn) {
        if (!done()) {
            if (System.nanoTime() - began > NOTABLE) {
                updateLeft(); // connecting has used a part of the wait
            }
            conn.requests.acquire(this);
        }
    }

    // ---- the answer ----

    /** Records the call that was sent. The connection's lock is held. */
    void asked(Call c) {
        call = c;
        c.limit = end == null ? null : System.nanoTime() + left * 1_000_000 + link.setup.timeout();
    }

    /** Handles the end of the call. */
    void answered(Call c) {
        Answer a = c.answer;
        boolean failed = a.code() != Codes.OK && a.code() != Codes.BUSY && a.code() != Codes.TIMEOUT;
        LockException why = a.error() != null || !failed ? a.error()
                : link.failure(place(a) < 0 ? a : a.of(terms.keys.text[place(a)]));
        if (why != null && (why.code() == Code.CLOSED || why.code() == Code.DRAINING)) {
            refused(why, c.hold.conn);
        } else if (why != null) {
            finish(why);
        } else if (a.code() != Codes.OK) {
            busy(place(a));
        } else if (c.taken) {
            tell();
        }
    }

    /** Returns which of several keys a failure is about, or -1 if it does not say. */
    private int place(Answer a) {
        return terms.keys.op == Codes.ACQUIRE_MANY && a.number() >= 0 && a.number() < ids.length ? (int) a.number() : -1;
    }

    /**
     * Continues after the daemon has answered that a key is busy. {@code at} is the key's position, or -1 if it is not known. If
     * holds of its own thread are in the way, this acquire has only tried. Then it waits for the other keys alone, and while it
     * holds those it tries all keys again.
     */
    private void busy(int at) {
        Hold[] ours = inTheWay;
        if (ours == null) {
            finish(new Busy(at));
            return;
        }
        int blocked = at >= 0 ? at : IntStream.range(0, ours.length).filter(i -> ours[i] != null).findFirst().orElse(0);
        if (ours[blocked] != null) {
            finish(Site.alreadyHeld(ours[blocked]));
        } else if (updateLeft()) {
            finish(new Busy(at));
        } else {
            dropRest();
            int[] others = IntStream.range(0, ours.length).filter(i -> ours[i] == null).toArray();
            Terms some = new Terms(
                    terms.keys.at(others), terms.owner, left, terms.options, terms.keeper, terms.site, terms.trace);
            Acquire r = new Acquire(link, some, this::restEnded);
            rest.set(r);
            if (done()) {
                dropRest(); // this acquire was given up before rest was set
            } else {
                r.start();
            }
        }
    }

    /** Continues after the acquire of the other keys has ended. */
    private void restEnded() {
        Acquire r = rest.get();
        if (r == null) {
            return; // this acquire was given up
        }
        if (r.outcome instanceof Hold[]) {
            updateLeft();
            start();
        } else if (r.outcome instanceof Busy b && b.at >= 0) {
            finish(new Busy(List.of(terms.keys.text).indexOf(r.terms.keys.text[b.at])));
        } else {
            finish(r.outcome);
        }
    }

    /** Gives up the acquire of the other keys, and releases them if it has ended. */
    private void dropRest() {
        Acquire r = rest.get() == null ? null : rest.getAndSet(null);
        if (r != null && !r.giveUp(null) && r.outcome instanceof Hold[] holds) {
            holds[0].conn.requests.release(holds, terms.options.shared, c -> { });
        }
    }

    /** Makes a grant the outcome, unless there is one; false if there is. {@link #tell} follows. The connection's lock is held. */
    boolean take(Hold[] holds) {
        return OUTCOME.compareAndSet(this, null, holds);
    }

    /**
     * Continues after a grant if one of its holds was over before the owner learned of it. Sets another outcome if there is no
     * time left, or if this has happened several times in a row.
     */
    private void lapsed(Hold[] holds, Hold over) {
        Object next = null;
        if (++cuts > CUTS) {
            String why = over.lost;
            next = over.loss(why == null ? "connection" : why);
        } else if (updateLeft()) {
            next = new Busy(-1);
        }
        if (terms.keys.several()) {
            over.conn.requests.release(holds, terms.options.shared, c -> { });
        } else {
            over.conn.requests.release(over, terms.options.shared, over.unwanted(), c -> { });
        }
        outcome = next;
        if (next == null) {
            start();
        } else {
            tell();
        }
    }

    /** Continues after the end of the connection, or after a pause if the daemon is going away; or ends with e. */
    void refused(LockException e, Conn conn) {
        dropRest();
        long now = System.nanoTime();
        long rest = 0;
        boolean over;
        boolean late = end != null && now - end >= 0;
        if (e.code() == Code.DRAINING) {
            if (drained == null) {
                drained = now + link.setup.patience();
            }
            rest = Math.max(1, (long) (pause * (0.5 + ThreadLocalRandom.current().nextDouble() / 2)));
            pause = Math.min(250, 2 * pause);
            long next = now + rest * 1_000_000;
            over = next - drained >= 0 || end != null && next - end >= 0;
        } else {
            cuts = now - conn.since < 1_000_000_000 ? cuts + 1 : 0;
            over = cuts > CUTS || late && (terms.waiting > 0 || cuts > 1) || e.code() != Code.CLOSED;
        }
        if (over || link.closed) {
            finish(e);
            return;
        }
        updateLeft();
        if (rest == 0) {
            start();
        } else {
            link.later(rest, this::start, () -> finish(e));
        }
    }

    /** Sets left to the rest of the wait, and tells whether the wait is over. */
    private boolean updateLeft() {
        if (end == null) {
            return false;
        }
        long nanos = end - System.nanoTime();
        if (terms.waiting > 0) {
            left = Math.max(0, (nanos + 999_999) / 1_000_000);
        }
        return nanos <= 0;
    }

    // ---- the outcome ----

    @Override
    boolean done() {
        return outcome != null;
    }

    /** Sets the outcome, unless there is one. */
    boolean finish(Object o) {
        if (!OUTCOME.compareAndSet(this, null, o)) {
            return false;
        }
        tell();
        return true;
    }

    /** Tells the callback or the waiting thread that there is an outcome. */
    void tell() {
        dropRest();
        if (then != null) {
            then.run();
        } else {
            wake();
        }
    }

    /** Withdraws the acquire, and makes {@code why} its outcome; false if it has ended already. */
    boolean giveUp(LockException why) {
        if (!OUTCOME.compareAndSet(this, null, why == null ? GIVEN_UP : why)) {
            return false;
        }
        Call c = call;
        if (c != null) {
            c.hold.conn.requests.withdraw(c);
        }
        dropRest();
        if (why != null) {
            tell();
        }
        return true;
    }

    /** Starts the acquire and waits for its outcome; an interrupt withdraws it. Returns this. */
    Acquire awaited() throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        start();
        do {
            try {
                await(null);
            } catch (InterruptedException e) {
                if (giveUp(null)) {
                    throw e;
                }
                Thread.currentThread().interrupt(); // the acquire ended first
            }
        } while (!settled());
        return this;
    }

    /** Starts the acquire and waits for its outcome; an interrupt is kept for later. Returns this. */
    Acquire awaitedUninterruptibly() {
        start();
        do {
            awaitUninterruptibly(null);
        } while (!settled());
        return this;
    }

    /** Tells whether the outcome is final. If it has a hold that is over, the acquire continues. */
    boolean settled() {
        if (!(outcome instanceof Hold[] holds)) {
            return true;
        }
        Hold over = over(holds);
        if (over != null && !over.over && over.conn.dead == null) { // an unread message may extend it
            over.conn.settle();
            over = over(holds);
        }
        if (over != null) {
            lapsed(holds, over);
        }
        return over == null;
    }

    /** Returns the first hold that is not held now, or null. */
    static Hold over(Hold[] holds) {
        for (Hold hold : holds) {
            if (!hold.owned()) {
                return hold;
            }
        }
        return null;
    }

    // ---- the result ----

    /** Returns the holds, or null if another owner has one of the locks. Throws a failure. */
    Hold[] holds() {
        if (outcome instanceof LockException e) {
            throw e.here();
        }
        return outcome instanceof Hold[] holds ? holds : null;
    }

    /** Returns the only hold, and has its loss reported, or null if another owner has the lock. Throws a failure. */
    Hold hold() {
        Hold[] holds = holds();
        if (holds != null && terms.options.onLost != null) {
            holds[0].listen(terms.options.onLost);
        }
        return holds == null ? null : holds[0];
    }

    /** Returns a lease of the holds, or null if another owner has one of the locks. Throws a failure. */
    Lease lease() {
        Hold[] holds = holds();
        return holds == null ? null : new Lease(holds, terms.options);
    }

    /** Returns a lease of the holds. Throws a failure. */
    Lease must() {
        Lease lease = lease();
        if (lease == null) {
            throw notAcquired();
        }
        return lease;
    }

    /** Returns the exception for keys that were not acquired. It names the key if the outcome does. */
    NotAcquiredException notAcquired() {
        String why = terms.waiting < 0 ? "the longest wait that the daemon allows is over"
                : "not acquired within " + Duration.ofMillis(terms.waiting);
        String which = outcome instanceof Busy busy && busy.at >= 0 ? " (\"" + terms.keys.text[busy.at] + "\")" : "";
        return new NotAcquiredException(terms.waiting == 0 ? Code.BUSY : Code.TIMEOUT, terms.keys + ": " + why + which);
    }

    /** A lease to come. If it is completed in another way, for example cancelled, the acquire is withdrawn. */
    static final class Future extends CompletableFuture<Lease> {
        private final Acquire acquire;

        Future(Link link, Keys keys, LockOptions options, long wait) {
            this.acquire = Acquire.of(
                    link, keys, options, wait, null, Owner.ofThread(), null, () -> link.execute(this::deliver));
            whenComplete((lease, e) -> acquire.giveUp(null));
            acquire.start();
        }

        /** Completes with the outcome, on the executor. */
        private void deliver() {
            if (!acquire.settled()) {
                if (isDone()) { // the acquire continues, but the future was cancelled meanwhile
                    acquire.giveUp(null);
                }
                return;
            }
            try {
                Lease lease = acquire.must();
                if (!complete(lease)) { // it was granted after it was cancelled
                    lease.giveBack();
                }
            } catch (RuntimeException | Error e) {
                completeExceptionally(e);
            }
        }
    }
}
