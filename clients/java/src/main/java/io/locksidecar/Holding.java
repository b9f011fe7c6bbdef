package io.locksidecar;

import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Function;

/** What can be done with a hold, for locks and leases alike. Nothing is kept here. */
final class Holding {
    private static final System.Logger LOG = System.getLogger("io.locksidecar");

    private Holding() {}

    /** Makes an acquire by an owner; by one that nobody else can name, if that is null. */
    static Acquire acquire(Link link, Key key, Owner owner, LockOptions options, long wait, Runnable then) {
        return owner == null
                ? acquire(link, key, Owner.next(), null, options, wait, then)
                : acquire(link, key, owner.number(), new WeakReference<>(owner), options, wait, then);
    }

    /** Makes an acquire by the thread that runs. */
    static Acquire acquireByThread(Link link, Key key, LockOptions options, long wait) {
        return acquire(link, key, Owner.ofThread(), new WeakReference<>(Thread.currentThread()), options, wait, null);
    }

    private static Acquire acquire(
            Link link, Key key, long owner, WeakReference<?> keeper, LockOptions options, long wait, Runnable then) {
        return new Acquire(
                link,
                new Acquire.Terms(key, owner, options.isShared(), wait, options.ttlMillis(), options.flags(), keeper),
                then);
    }

    /** Returns an acquire's hold, or null if somebody else has the lock. */
    static Hold hold(Object outcome, LockOptions options) {
        if (outcome instanceof LockException e) {
            throw again(e);
        }
        if (!(outcome instanceof Hold hold)) {
            return null;
        }
        hold.conn.link().renewed(hold);
        if (options.onLost() != null) {
            listen(hold, options.onLost());
        }
        return hold;
    }

    /** Begins to tell of the hold's loss, at once if it has come already. */
    private static void listen(Hold hold, Consumer<LostException> listener) {
        String lost;
        hold.conn.mu.lock();
        try {
            lost = hold.lost;
            if (lost == null) {
                hold.listen(listener);
            }
        } finally {
            hold.conn.mu.unlock();
        }
        if (lost != null && !lost.equals("closed")) {
            hold.conn.link().tell(listener, hold.loss(lost));
        }
    }

    /** Adds this thread's trace to an exception that was made on another. */
    private static LockException again(LockException e) {
        e.fillInStackTrace();
        return e;
    }

    /**
     * Releases one acquire of a hold and waits for the daemon's answer; false if the hold was none of the
     * caller's. A loss is thrown. A release that is not confirmed is not: the work was done under the lock.
     */
    static boolean release(Hold hold, boolean shared) {
        settle(hold);
        return released(hold, hold.conn.release(hold, shared, null));
    }

    /** Sees to it that what has arrived was read, where it could keep the hold. */
    static void settle(Hold hold) {
        if (doubtful(hold)) {
            hold.conn.settle(hold);
        }
    }

    /** Waits for the end of a release. */
    static boolean released(Hold hold, Object left) {
        if (left == Conn.Left.NOT_OWNED) {
            return false;
        }
        try {
            ended(hold, left);
        } catch (UnconfirmedException e) {
            LOG.log(System.Logger.Level.INFO, e.getMessage());
        }
        return true;
    }

    /** Waits for the end of a downgrade. */
    static void downgraded(Hold hold, Object left) {
        if (left == Conn.Left.NOT_OWNED) {
            throw notHeld(hold);
        }
        ended(hold, left);
    }

    /** Renews a hold, and waits for the answer; ttl 0 is the one it has. */
    static void extend(Hold hold, long ttl) {
        check(hold);
        Call c = new Call(Codes.RENEW, hold, null, null);
        hold.conn.send(c, hold.name, hold.id.owner(), hold.fence, ttl);
        answer(hold, c);
    }

    private static void check(Hold hold) {
        if (hold.over) {
            throw notHeld(hold);
        }
    }

    private static NotHeldException notHeld(Hold hold) {
        String lost = hold.lost;
        return lost != null ? hold.loss(lost)
                : new NotHeldException("lock \"" + hold.id.key() + "\" is not held by this owner");
    }

    private static void ended(Hold hold, Object left) {
        if (left == Conn.Left.LOST) {
            throw notHeld(hold);
        }
        if (left instanceof Call c) {
            answer(hold, c);
        }
    }

    private static void answer(Hold hold, Call c) {
        Link link = hold.conn.link();
        if (!c.awaitUninterruptibly(System.nanoTime() + link.timeout())) {
            if (c.op == Codes.RELEASE) {
                throw new UnconfirmedException(link.silent().getMessage() + "; the release has been sent");
            }
            throw link.silent();
        }
        LockException why = failure(hold, c);
        if (why != null) {
            throw again(why);
        }
    }

    /** Returns what a call about a hold failed with, or null. */
    static LockException failure(Hold hold, Call c) {
        Call.Answer a = c.answer();
        if (a.error() instanceof ConnectionLostException e) {
            if (c.op == Codes.RELEASE) {
                return null; // that is release, too
            }
            return hold.lost != null ? hold.loss(hold.lost) : e;
        }
        if (a.error() != null) {
            return c.op == Codes.RELEASE && a.error() instanceof UnavailableException
                    ? new UnconfirmedException(a.error().getMessage() + "; the release has been sent")
                    : a.error();
        }
        if (a.code() == Codes.NOT_HELD) {
            String lost = hold.lost;
            return hold.loss(lost == null ? "gone" : lost);
        }
        return a.code() == Codes.OK ? null : hold.conn.link().failure(a);
    }

    /** Sends a release; the future ends on the client's executor, or here. */
    static CompletableFuture<Void> async(Hold hold, Function<Consumer<Call>, Object> send) {
        CompletableFuture<Void> future = new CompletableFuture<>();
        Link link = hold.conn.link();
        Object left = send.apply(c -> link.execute(() -> complete(future, failure(hold, c))));
        if (left instanceof Call c) {
            hold.conn.limit(c);
        } else if (left == null || left == Conn.Left.STILL_HELD) {
            future.complete(null);
        } else {
            future.completeExceptionally(notHeld(hold));
        }
        return future;
    }

    /** Tells whether what has arrived, but was not read, may decide whether the hold is lost. */
    static boolean doubtful(Hold hold) {
        return !hold.over && !hold.owned();
    }

    private static void complete(CompletableFuture<Void> future, LockException why) {
        if (why == null) {
            future.complete(null);
        } else {
            future.completeExceptionally(why);
        }
    }

    static Duration remaining(Hold hold) {
        return hold == null ? Duration.ZERO : Duration.ofNanos(hold.remaining());
    }
}
