package io.locksidecar;

import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.Function;

/** The operations on a hold, for locks and leases alike. It has no state. */
final class Holding {
    private static final System.Logger LOG = System.getLogger("io.locksidecar");

    private Holding() {}

    /**
     * Makes an acquire by the owner of the options, which may be the current thread; without one, by a new owner. If then is
     * null, the current thread is about to wait for it; the string of by names it in messages.
     */
    static Acquire acquire(Link link, Keys keys, LockOptions options, long wait, Object by, Runnable then) {
        Owner owner = options.owner();
        long number = owner != null ? owner.number() : options.isByThread() ? Owner.ofThread() : Owner.next();
        WeakReference<?> keeper = owner != null ? new WeakReference<>(owner)
                : options.isByThread() ? new WeakReference<>(Thread.currentThread()) : null;
        Site site = then != null ? null : Site.here(link, by, options.isByThread(), owner != null);
        return acquire(link, keys, number, keeper, site, options, wait, then);
    }

    /** Makes an acquire by the owner that a handle has in the current thread, which is about to wait for it. */
    static Acquire acquire(Link link, Keys keys, LockOptions options, long wait, Handle handle, long owner) {
        Site site = Site.here(link, handle.ref(), true, false);
        return acquire(link, keys, owner, site.inThread(), site, options, wait, null);
    }

    private static Acquire acquire(
            Link link, Keys keys, long owner, WeakReference<?> keeper, Site site, LockOptions options, long wait,
            Runnable then) {
        boolean permit = keys.permits() > 0; // it has a lease, which hears of the loss, and waits for no other hold
        return new Acquire(
                link,
                new Acquire.Terms(
                        keys, owner, options.isShared(), wait, options.ttlMillis(), options.flags(),
                        permit ? null : keeper, permit ? null : site),
                then);
    }

    /** Returns the hold of an acquire of one key, or null if another owner has the lock. */
    static Hold hold(Object outcome, LockOptions options) {
        Hold[] holds = holds(outcome);
        if (holds == null) {
            return null;
        }
        if (options.onLost() != null) {
            listen(holds[0], options.onLost());
        }
        return holds[0];
    }

    /** Returns an acquire's holds, or null if another owner has one of the locks. */
    static Hold[] holds(Object outcome) {
        if (outcome instanceof LockException e) {
            throw again(e);
        }
        return outcome instanceof Hold[] holds ? holds : null;
    }

    /** Returns the exception for keys that were not acquired. It names the key if the outcome does. */
    static NotAcquiredException notAcquired(Keys keys, Object outcome, String why) {
        boolean known = outcome instanceof Acquire.Busy busy && busy.at() >= 0;
        String which = known ? " (\"" + keys.text(((Acquire.Busy) outcome).at()) + "\")" : "";
        return new NotAcquiredException(keys + ": " + why + which);
    }

    /** Begins to report the hold's loss; at once if it has been lost already. */
    static void listen(Hold hold, Consumer<LostException> listener) {
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

    /** Adds this thread's stack trace to an exception that was made on another thread. */
    private static LockException again(LockException e) {
        e.fillInStackTrace();
        return e;
    }

    /**
     * Releases one acquire of a hold and waits for the daemon's answer; false if the caller does not have the hold.
     * Throws a loss. Does not throw if the release is not confirmed, because the work was done under the lock.
     */
    static boolean release(Hold hold, boolean shared) {
        hold.held();
        return released(hold, hold.conn.releases.release(hold, shared, null));
    }

    /** Waits for the end of a release. */
    static boolean released(Hold hold, Object left) {
        if (left == Releases.Left.NOT_OWNED) {
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
        if (left == Releases.Left.NOT_OWNED) {
            throw notHeld(hold);
        }
        ended(hold, left);
    }

    /** Renews a hold, and waits for the answer. A ttl of 0 keeps its TTL. */
    static void extend(Hold hold, long ttl) {
        check(hold);
        Call c = new Call(Codes.RENEW, hold, null, null);
        hold.conn.requests.send(c, hold.name, hold.id.owner(), hold.fence, ttl);
        answer(hold, c);
    }

    /** Renews several holds at once, and waits for all answers. */
    static void extend(Hold[] holds, long ttl) {
        List<Call> calls = new ArrayList<>();
        for (Hold hold : holds) {
            check(hold);
        }
        for (Hold hold : holds) {
            Call c = new Call(Codes.RENEW, hold, null, null);
            calls.add(c);
            hold.conn.requests.send(c, hold.name, hold.id.owner(), hold.fence, ttl);
        }
        calls.forEach(c -> answer(c.hold, c));
    }

    private static void check(Hold hold) {
        if (!hold.held()) {
            throw notHeld(hold);
        }
    }

    private static NotHeldException notHeld(Hold hold) {
        String lost = hold.lost;
        return lost != null ? hold.loss(lost)
                : new NotHeldException(hold + " is not held by this owner");
    }

    private static void ended(Hold hold, Object left) {
        if (left == Releases.Left.LOST) {
            throw notHeld(hold);
        }
        if (left instanceof Call c) {
            answer(hold, c);
        }
    }

    private static void answer(Hold hold, Call c) {
        Link link = hold.conn.link();
        LockException why;
        if (c.awaitUninterruptibly(System.nanoTime() + link.timeout())) {
            why = failure(hold, c);
        } else if (c.op == Codes.RELEASE || c.op == Codes.RELEASE_MANY) {
            why = new UnconfirmedException(link.silent().getMessage() + "; the release has been sent");
        } else {
            why = link.silent();
        }
        if (why != null) {
            throw again(why);
        }
    }

    /** Returns the error of a call about a hold, or null. */
    static LockException failure(Hold hold, Call c) {
        Call.Answer a = c.answer();
        boolean release = c.op == Codes.RELEASE || c.op == Codes.RELEASE_MANY;
        if (a.error() instanceof ConnectionLostException e) {
            if (release) {
                return null; // the end of the connection also releases
            }
            return hold.lost != null ? hold.loss(hold.lost) : e;
        }
        if (a.error() != null) {
            return release && a.error() instanceof UnavailableException
                    ? new UnconfirmedException(a.error().getMessage() + "; the release has been sent")
                    : a.error();
        }
        if (a.code() == Codes.NOT_HELD) {
            String lost = hold.lost;
            return hold.loss(lost == null ? "gone" : lost);
        }
        if (a.code() != Codes.OK) {
            return hold.conn.link().failure(a);
        }
        String lost = hold.lost;
        if (!release && lost != null) {
            return hold.loss(lost); // it was lost during the wait for the answer
        }
        return c.codes == null ? null : failure(c);
    }

    /** Returns the first error of a release-many that was answered, a loss before others; or null. */
    private static LockException failure(Call c) {
        LockException first = null;
        for (int i = 0; i < c.codes.length; i++) {
            Hold hold = c.holds[i];
            if (c.codes[i] == Codes.NOT_HELD) {
                return hold.loss("gone");
            }
            if (c.codes[i] != Codes.OK && first == null) {
                first = hold.conn.link().failure(new Call.Answer(c.codes[i], "released", 0, null).of(hold.id.key()));
            }
        }
        return first;
    }

    /** Waits for the end of the releases of several holds. Throws the first loss; see {@link #release}. */
    static void released(Hold[] holds, List<Call> calls) {
        LockException first = lost(holds);
        for (Call c : calls) {
            try {
                answer(c.hold, c);
            } catch (LostException | UnconfirmedException e) {
                first = worse(first, e);
            }
        }
        if (first instanceof UnconfirmedException) {
            LOG.log(System.Logger.Level.INFO, first.getMessage());
        } else if (first != null) {
            throw first;
        }
    }

    /** Returns the first loss of holds that were released, or null. */
    private static LockException lost(Hold[] holds) {
        for (Hold hold : holds) {
            String lost = hold.lost;
            if (lost != null) {
                return hold.loss(lost);
            }
        }
        return null;
    }

    /** Returns the worse one of two failures: a loss, or else the earlier one. */
    private static LockException worse(LockException one, LockException two) {
        return one == null || two instanceof LostException && !(one instanceof LostException) ? two : one;
    }

    /** Sends releases of several holds. The future completes on the client's executor, or on this thread. */
    static CompletableFuture<Void> async(Hold[] holds, Function<Consumer<Call>, List<Call>> send) {
        CompletableFuture<Void> future = new CompletableFuture<>();
        Link link = holds[0].conn.link();
        Queue<Call> ended = new ConcurrentLinkedQueue<>();
        AtomicInteger open = new AtomicInteger(); // negative until their number is known
        Runnable end = () -> {
            LockException first = lost(holds);
            for (Call c : ended) {
                LockException why = failure(c.hold, c);
                first = why == null ? first : worse(first, why);
            }
            complete(future, first);
        };
        List<Call> calls = send.apply(c -> {
            ended.add(c);
            if (open.decrementAndGet() == 0) {
                link.execute(end);
            }
        });
        if (calls == null) { // it was done before
            future.complete(null);
            return future;
        }
        calls.forEach(c -> c.hold.conn.limit(c));
        if (open.addAndGet(calls.size()) == 0) {
            end.run();
        }
        return future;
    }

    /** Sends a release. The future completes on the client's executor, or on this thread. */
    static CompletableFuture<Void> async(Hold hold, Function<Consumer<Call>, Object> send) {
        CompletableFuture<Void> future = new CompletableFuture<>();
        Link link = hold.conn.link();
        Object left = send.apply(c -> link.execute(() -> complete(future, failure(hold, c))));
        if (left instanceof Call c) {
            hold.conn.limit(c);
        } else if (left == null || left == Releases.Left.STILL_HELD) {
            future.complete(null);
        } else {
            future.completeExceptionally(notHeld(hold));
        }
        return future;
    }

    /** Tells whether a message that has arrived, but was not read, may decide whether the hold is lost. */
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

    static Optional<Duration> untilEnd(Hold hold) {
        Long nanos = hold == null ? null : hold.untilEnd();
        return nanos == null ? Optional.empty() : Optional.of(Duration.ofNanos(nanos));
    }

    static Duration remaining(Hold hold) {
        return hold == null ? Duration.ZERO : Duration.ofNanos(hold.remaining());
    }
}
