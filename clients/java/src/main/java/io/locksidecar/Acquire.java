package io.locksidecar;

import java.lang.ref.WeakReference;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
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
    private static final VarHandle OUTCOME;

    static {
        try {
            OUTCOME = MethodHandles.lookup().findVarHandle(Acquire.class, "outcome", Object.class);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    /** The terms of an acquire. */
    record Terms(
            Keys keys, long owner, boolean shared, long waiting, long ttl, long flags, WeakReference<?> keeper,
            Site site) {
        /** Returns the same terms for some of the keys. */
        Terms of(Keys some, long millis) {
            return new Terms(some, owner, shared, millis, ttl, flags, keeper, site);
        }
    }

    private final Link link;
    private final Terms terms;
    private final Hold.Id[] ids;
    private final byte[] trace;
    /** Is called with the outcome, on any thread, and must not block; null if a thread waits. */
    private final Runnable then;
    /** System.nanoTime at the end of the wait; null without bound. */
    private final Long end;

    /** A Hold for each key, Busy, GIVEN_UP, or a LockException. */
    @SuppressWarnings("unused") // by OUTCOME
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

    Acquire(Link link, Terms terms, Runnable then) {
        this(link, terms, link.trace(), then);
    }

    private Acquire(Link link, Terms terms, byte[] trace, Runnable then) {
        this.link = link;
        this.terms = terms;
        this.ids = new Hold.Id[terms.keys.all().length];
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
        return terms.ttl;
    }

    long flags() {
        return terms.flags;
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
        Call.Answer a = c.answer();
        if (a.error() != null) {
            if (a.error() instanceof ConnectionLostException) {
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
            LockException why = link.failure(place(a) < 0 ? a : a.of(terms.keys.text(place(a))));
            if (why instanceof DrainingException) {
                refused(why, c.hold.conn);
            } else {
                finish(why);
            }
        }
    }

    /** Returns which of several keys a failure is about, or -1 if it does not say. */
    private int place(Call.Answer a) {
        return terms.keys.many() && a.number() >= 0 && a.number() < ids.length ? (int) a.number() : -1;
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
            Key[] others = IntStream.range(0, ours.length)
                    .filter(i -> ours[i] == null).mapToObj(i -> terms.keys.all()[i]).toArray(Key[]::new);
            Acquire r = new Acquire(link, terms.of(new Keys(others, true, 0), left), trace, this::restEnded);
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
            finish(new Busy(List.of(terms.keys.all()).indexOf(r.terms.keys.all()[b.at])));
        } else {
            finish(r.outcome);
        }
    }

    /** Gives up the acquire of the other keys, and releases them if it has ended. */
    private void dropRest() {
        Acquire r = rest.getAndSet(null);
        if (r != null && !r.giveUp(null) && r.outcome instanceof Hold[] holds) {
            holds[0].conn.releases.release(holds, terms.shared, c -> { });
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
            over.conn.releases.release(holds, terms.shared, c -> { });
        } else {
            over.conn.releases.release(over, terms.shared, c -> { });
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
        if (e instanceof DrainingException) {
            if (drained == null) {
                drained = now + link.patience();
            }
            rest = Math.max(1, (long) (pause * (0.5 + ThreadLocalRandom.current().nextDouble() / 2)));
            pause = Math.min(250, 2 * pause);
            long next = now + rest * 1_000_000;
            over = next - drained >= 0 || end != null && next - end >= 0;
        } else {
            cuts = now - conn.since < 1_000_000_000 ? cuts + 1 : 0;
            over = cuts > CUTS || late && (terms.waiting > 0 || cuts > 1) || !(e instanceof ConnectionLostException);
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
}
