package io.locksidecar;

import io.locksidecar.Holds.Site;
import io.locksidecar.LockException.Code;
import io.locksidecar.Wait.Answer;
import io.locksidecar.Wait.Call;
import java.lang.ref.WeakReference;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.AtomicReferenceFieldUpdater;
import java.util.stream.IntStream;

/**
 * One acquire, of one key or of several at once, to its end. It survives restarts of the daemon for as long as its wait
 * allows, but only a short time with a daemon that fails it. It runs on the thread that brings the next event, and none
 * of its methods blocks. Its outcome is set once. A caller that gives it up is told if the grant was first.
 */
final class Acquire extends Wait implements Link.Dial {
    /** How often in a row a new connection may end at once, or a grant come too late. */
    private static final int CUTS = 3;
    /** A time for connecting, in nanoseconds, from which on it is subtracted from the wait. */
    private static final long NOTABLE = 20_000_000;
    /** The outcome if another owner holds the lock. at is the position of the key of several, or -1. */
    record Busy(int at) {}

    private static final Object GIVEN_UP = new Object();
    private static final AtomicReferenceFieldUpdater<Acquire, Object> OUTCOME =
            AtomicReferenceFieldUpdater.newUpdater(Acquire.class, Object.class, "outcome");

    /** The terms of an acquire. */
    private record Terms(
            Keys keys, long owner, boolean shared, long waiting, LockOptions options, WeakReference<?> keeper, Site site) {}

    private final Link link;
    private final Terms terms;
    private final Hold.Id[] ids;
    private final byte[] trace;
    /** Is called with the outcome, on any thread, and must not block; null if a thread waits. */
    private final Runnable then;
    /** System.nanoTime at the end of the wait; null without bound. */
    private final Long end;

    /** A Hold for each key, Busy, GIVEN_UP, or a LockException. */
    private volatile Object outcome;
    private volatile Call call;

    // Only the thread that brings the next event uses these. Each event happens after the one before.
    private volatile long began;
    private volatile long until;
    private long left;
    private Hold[] inTheWay;
    private int cuts;
    private Long drained;
    private long pause = 10;

    /** The acquire of the other keys, until all can be acquired; see {@link #busy}. */
    private final AtomicReference<Acquire> rest = new AtomicReference<>();

    /**
     * Makes an acquire by the owner of the options, which may be the current thread; without one, by a new owner. If then is
     * null, the current thread is about to wait for it; the string of by names it in messages.
     */
    static Acquire of(Link link, Keys keys, LockOptions options, long wait, Object by, Runnable then) {
        Owner owner = options.owner();
        long number = owner != null ? owner.number() : options.isByThread() ? Owner.ofThread() : Owner.next();
        WeakReference<?> keeper = owner != null ? new WeakReference<>(owner)
                : options.isByThread() ? new WeakReference<>(Thread.currentThread()) : null;
        boolean permit = keys.permits > 0; // it has a lease, which hears of the loss, and waits for no other hold
        Site site = then != null || permit ? null : Site.here(link, Owner.ofThread(), by, options.isByThread(), owner != null);
        return new Acquire(link, new Terms(
                keys, number, options.isShared(), wait, options, permit ? null : keeper, site), link.trace(), then);
    }

    /** Makes an acquire by an owner that a handle has in the current thread, of this number, which is about to wait for it. */
    static Acquire of(Link link, Keys keys, LockOptions options, long wait, Object handle, long owner, long thread) {
        Site site = Site.here(link, thread, handle, true, false);
        return new Acquire(
                link, new Terms(keys, owner, options.isShared(), wait, options, site.inThread(), site), link.trace(), null);
    }

    private Acquire(Link link, Terms terms, byte[] trace, Runnable then) {
        this.link = link;
        this.terms = terms;
        this.ids = new Hold.Id[terms.keys.size()];
        for (int i = 0; i < ids.length; i++) {
            ids[i] = Hold.Id.asked(terms.keys, i, terms.owner);
        }
        this.trace = trace;
        this.then = then;
        this.left = terms.waiting;
        this.end = terms.waiting < 0 ? null : System.nanoTime() + terms.waiting * 1_000_000;
    }

    Keys keys() {
        return terms.keys;
    }

    long owner() {
        return terms.owner;
    }

    /** Returns the ids of the holds of the keys. */
    Hold.Id[] ids() {
        return ids;
    }

    boolean shared() {
        return terms.shared;
    }

    /** Returns the wait for the daemon: 0 while another hold of its own thread could block it. */
    long left() {
        return inTheWay != null ? 0 : left;
    }

    /**
     * Sets the shared holds that its own thread has of its keys through other handles, at the positions of these keys;
     * null without any. A writer may wait for such a hold, so this acquire must not wait behind the writer.
     */
    void inTheWay(Hold[] holds) {
        inTheWay = holds;
    }

    long ttl() {
        return terms.options.ttlMillis();
    }

    long flags() {
        return terms.options.flags();
    }

    /** Returns for how many milliseconds the hold is kept; 0 for not. */
    long keep() {
        return terms.options.keepMillis();
    }

    /** Returns the traceparent of the caller; null if there is none. */
    byte[] trace() {
        return trace;
    }

    WeakReference<?> keeper() {
        return terms.keeper;
    }

    /** Returns the place where it blocks its thread; null if it does not, or asks for a permit. */
    Site site() {
        return terms.site;
    }

    /** Tells whether it may wait in the queue: it is not a try. */
    boolean waits() {
        return terms.waiting != 0;
    }

    /** Tells whether no thread waits for it. */
    boolean async() {
        return then != null;
    }

    @Override
    Conn conn() {
        Call c = call;
        return c == null ? null : c.conn();
    }

    /** Begins, or begins again. */
    void start() {
        LostException loss = done() || link.closed() ? null : link.lossOf(this);
        if (loss != null) {
            finish(loss);
        } else if (!done()) {
            began = System.nanoTime();
            long patience = began + link.patience();
            until = end == null || end - patience > 0 ? patience : end;
            link.dial(this);
        }
    }

    // ---- connecting ----

    @Override
    public long until() {
        return until;
    }

    @Override
    public void connected(Conn conn) {
        if (!done()) {
            if (System.nanoTime() - began > NOTABLE) {
                over(); // connecting has used a part of the wait
            }
            conn.requests.acquire(this);
        }
    }

    @Override
    public void failed(LockException why) {
        finish(why);
    }

    // ---- the answer ----

    /** Records the call that was sent. The connection's lock is held. */
    void asked(Call c) {
        call = c;
        c.limit = end == null ? null : System.nanoTime() + left * 1_000_000 + link.timeout();
    }

    /** Handles the end of the call. */
    void answered(Call c) {
        Answer a = c.answer();
        if (a.error() != null) {
            if (a.error().code() == Code.CLOSED) {
                refused(a.error(), c.hold.conn);
            } else {
                finish(a.error());
            }
        } else if (a.code() == Codes.OK) {
            if (c.taken) {
                tell();
            }
        } else if (a.code() == Codes.BUSY || a.code() == Codes.TIMEOUT) {
            busy(place(a));
        } else {
            LockException why = link.failure(place(a) < 0 ? a : a.of(terms.keys.text[place(a)]));
            if (why.code() == Code.DRAINING) {
                refused(why, c.hold.conn);
            } else {
                finish(why);
            }
        }
    }

    /** Returns which of several keys a failure is about, or -1 if it does not say. */
    private int place(Answer a) {
        return terms.keys.op == Codes.ACQUIRE_MANY && a.number() >= 0 && a.number() < ids.length ? (int) a.number() : -1;
    }

    /**
     * Continues after the daemon has answered that a key is busy. at is the key's position, or -1 if it is not known. If
     * holds of its own thread are in the way, this acquire only tries. Then it waits for the other keys alone, and tries all
     * keys again while it holds those.
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
        } else if (over()) {
            finish(new Busy(at));
        } else {
            dropRest();
            int[] others = IntStream.range(0, ours.length).filter(i -> ours[i] == null).toArray();
            Terms some = new Terms(
                    terms.keys.at(others), terms.owner, terms.shared, left, terms.options, terms.keeper, terms.site);
            Acquire r = new Acquire(link, some, trace, this::restEnded);
            rest.set(r);
            if (done()) {
                dropRest(); // this acquire was given up before rest was set
            } else {
                r.start();
            }
        }
    }

    private void restEnded() {
        Acquire r = rest.get();
        if (r == null) {
            return; // it was given up
        }
        if (r.outcome instanceof Hold[]) {
            over();
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
            holds[0].conn.requests.release(holds, terms.shared, c -> { });
        }
    }

    /** Takes a grant as the outcome, unless there is one. Waiters are told later. The connection's lock is held. */
    boolean take(Hold[] holds) {
        return OUTCOME.compareAndSet(this, null, holds);
    }

    /**
     * Continues after a grant if one of its holds was over before its owner got it. If there is no time left, or this
     * happens again and again, it sets the outcome.
     */
    private void lapsed(Hold[] holds, Hold over) {
        Object next = null;
        if (++cuts > CUTS) {
            String why = over.lost;
            next = over.loss(why == null ? "connection" : why);
        } else if (over()) {
            next = new Busy(-1);
        }
        if (terms.keys.many()) {
            over.conn.requests.release(holds, terms.shared, c -> { });
        } else {
            over.conn.requests.release(over, terms.shared, over.unwanted(), c -> { });
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
                drained = now + link.patience();
            }
            rest = Math.max(1, (long) (pause * (0.5 + ThreadLocalRandom.current().nextDouble() / 2)));
            pause = Math.min(250, 2 * pause);
            long next = now + rest * 1_000_000;
            over = next - drained >= 0 || end != null && next - end >= 0;
        } else {
            cuts = now - conn.since < 1_000_000_000 ? cuts + 1 : 0;
            over = cuts > CUTS || late && (terms.waiting > 0 || cuts > 1) || e.code() != Code.CLOSED;
        }
        if (over || link.closed()) {
            finish(e);
            return;
        }
        over();
        if (rest == 0) {
            start();
        } else {
            link.later(rest, this::start, () -> finish(e));
        }
    }

    /** Computes the rest of the wait, and tells whether there is none. */
    private boolean over() {
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

    Object outcome() {
        return outcome;
    }

    /** Sets the outcome, unless there is one. */
    boolean finish(Object o) {
        if (!OUTCOME.compareAndSet(this, null, o)) {
            return false;
        }
        tell();
        return true;
    }

    void tell() {
        dropRest();
        if (then != null) {
            then.run();
        } else {
            wake();
        }
    }

    /** Withdraws the acquire, with this as its outcome; false if it has ended already. */
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

    /** Waits for the outcome; an interrupt withdraws the acquire. */
    Object get() throws InterruptedException {
        while (true) {
            try {
                await(null);
            } catch (InterruptedException e) {
                if (giveUp(null)) {
                    throw e;
                }
                Thread.currentThread().interrupt(); // the acquire ended first
            }
            if (settled()) {
                return outcome;
            }
        }
    }

    /** Waits for the outcome, and keeps an interrupt for later. */
    Object getUninterruptibly() {
        do {
            awaitUninterruptibly(null);
        } while (!settled());
        return outcome;
    }

    /** Tells whether the outcome is final. If it is a hold that is over, the acquire continues. */
    boolean settled() {
        if (!(outcome instanceof Hold[] holds)) {
            return true;
        }
        Hold over = over(holds);
        if (over != null && !over.over && over.conn.dead == null) { // a message that was not read yet may extend it
            over.conn.settle();
            over = over(holds);
        }
        if (over != null) {
            lapsed(holds, over);
        }
        return over == null;
    }

    /** Returns the first that is not held now, or null. */
    static Hold over(Hold[] holds) {
        for (Hold hold : holds) {
            if (!hold.owned()) {
                return hold;
            }
        }
        return null;
    }

    // ---- the result ----

    /** Waits for the end, unless it was interrupted before; returns this. */
    Acquire awaited() throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        start();
        get();
        return this;
    }

    /** Waits for the end, and keeps an interrupt for later; returns this. */
    Acquire awaitedUninterruptibly() {
        start();
        getUninterruptibly();
        return this;
    }

    /** Returns the holds, or null if another owner has one of the locks. Throws a failure. */
    Hold[] holds() {
        if (outcome instanceof LockException e) {
            e.fillInStackTrace(); // it was made on another thread
            throw e;
        }
        return outcome instanceof Hold[] holds ? holds : null;
    }

    /** Returns the only hold, and has its loss reported, or null if another owner has the lock. Throws a failure. */
    Hold hold() {
        Hold[] holds = holds();
        if (holds != null && terms.options.onLost() != null) {
            holds[0].listen(terms.options.onLost());
        }
        return holds == null ? null : holds[0];
    }

    /** Returns a lease of the holds, or null if another owner has one of the locks. Throws a failure. */
    Lease lease() {
        Hold[] holds = holds();
        return holds == null ? null : new Lease(holds, terms.options);
    }

    /** Returns a lease of the holds. Throws a failure. */
    Lease must(String why) {
        Lease lease = lease();
        if (lease == null) {
            throw notAcquired(why);
        }
        return lease;
    }

    /** Returns the exception for keys that were not acquired. It names the key if the outcome does. */
    NotAcquiredException notAcquired(String why) {
        boolean known = outcome instanceof Busy busy && busy.at() >= 0;
        String which = known ? " (\"" + terms.keys.text[((Busy) outcome).at()] + "\")" : "";
        return new NotAcquiredException(terms.waiting == 0 ? Code.BUSY : Code.TIMEOUT, terms.keys + ": " + why + which);
    }

    /** A lease to come. If it is completed in another way, for example cancelled, the acquire is withdrawn. */
    static final class Future extends CompletableFuture<Lease> {
        private final Link link;
        private final Acquire acquire;

        Future(Link link, Keys keys, LockOptions options, long wait) {
            this.link = link;
            this.acquire = Acquire.of(link, keys, options, wait, null, () -> link.execute(this::deliver));
            whenComplete((lease, e) -> acquire.giveUp(null));
            acquire.start();
        }

        /** Completes with the outcome, on the executor. */
        private void deliver() {
            if (!acquire.settled()) {
                if (isDone()) { // the acquire continues, but is not wanted any more
                    acquire.giveUp(null);
                }
                return;
            }
            Lease lease;
            try {
                lease = acquire.must("not acquired in time");
            } catch (RuntimeException | Error e) {
                completeExceptionally(e);
                return;
            }
            if (!complete(lease)) { // it was granted after it was cancelled
                lease.giveBack();
            }
        }
    }
}
