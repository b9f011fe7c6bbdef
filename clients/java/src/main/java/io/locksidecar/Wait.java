package io.locksidecar;

import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/**
 * Something that one thread may wait for. No lock is held meanwhile. If no other thread reads the connection that brings
 * the event, the waiting thread reads it itself; see {@link Conn#lead}. Otherwise it parks.
 */
abstract class Wait {
    private volatile Thread waiter;
    /** The connection that the waiting thread reads; null if it does not. */
    volatile Conn reads;
    /** A platform thread waits, which may read. */
    volatile boolean mayRead;

    /** Tells whether the awaited event has happened. The code that makes it true calls wake afterwards. */
    abstract boolean done();

    /** Returns the connection that brings the event; null if there is none. */
    Conn conn() {
        return null;
    }

    final void wake() {
        Thread t = waiter;
        if (t == null || t == Thread.currentThread()) {
            return;
        }
        Conn c = reads;
        if (c != null) {
            c.wakeReader();
        }
        LockSupport.unpark(t);
    }

    /**
     * Waits until done, or until System.nanoTime has reached limit (null for none); false in that case. An interrupt
     * does not change the awaited event.
     */
    final boolean await(Long limit) throws InterruptedException {
        Thread me = Thread.currentThread();
        mayRead = !isVirtual(me);
        waiter = me;
        while (!done()) {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            if (limit != null && limit - System.nanoTime() <= 0) {
                return done();
            }
            Conn c = conn();
            if (c != null && (c.lead(this, limit) || done())) { // a lock in lead may have used up the permit of a wake
                continue;
            }
            if (limit == null) {
                LockSupport.park(this);
            } else {
                LockSupport.parkNanos(this, limit - System.nanoTime()); // returns at once if that is not positive
            }
        }
        return true;
    }

    /**
     * Tells whether a thread is virtual. Such a thread does not read, since a selector would keep its carrier from other
     * threads. Java 17 has no method for this, but later versions put all virtual threads into a group of this name.
     */
    static boolean isVirtual(Thread thread) {
        ThreadGroup group = thread.getThreadGroup();
        return group != null && "VirtualThreads".equals(group.getName());
    }

    /** Like await, but an interrupt is kept for later. */
    final boolean awaitUninterruptibly(Long limit) {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return await(limit);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** An event of a connection that code sets. */
    static final class Flag extends Wait {
        private final Conn conn;
        private volatile boolean set;

        Flag(Conn conn) {
            this.conn = conn;
        }

        @Override
        boolean done() {
            return set;
        }

        @Override
        Conn conn() {
            return conn;
        }

        void set() {
            set = true;
            wake();
        }
    }

    /** The end of a call: a reply's code, its text and a number in it; or an error without a reply. */
    record Answer(int code, String text, long number, LockException error) {
        /** The answer of a success without a number. */
        static final Answer OK = new Answer(Codes.OK, "", 0, null);

        static Answer failed(LockException why) {
            return new Answer(-1, "", 0, why);
        }

        /** Returns a failure that names the key. */
        Answer of(String key) {
            return new Answer(code, "\"" + key + "\": " + text, number, error);
        }
    }

    /** One request in flight. */
    static final class Call extends Wait {
        private static final Hold[] NONE = {};

        final int op;
        /** The holds that the request names. For an acquire, the granted holds replace them. Guarded by mu of conn. */
        Hold[] holds;
        /** The first hold of the request; null without any. */
        final Hold hold;
        /** Is called at the end by the thread that brings it, without a lock; null if a thread waits, or for an acquire. */
        final Consumer<Call> then;
        /** The acquire that the call belongs to, or null. */
        final Acquire asker;
        /** For a cancel: the call to be withdrawn. */
        final Call target;

        private volatile Conn conn;
        /** The request's id; guarded by mu of conn. */
        long id;
        /** The grant is no longer wanted; guarded by mu of conn. */
        boolean abandoned;
        /** System.nanoTime until which an answer is expected; null for no limit. */
        Long limit;
        /** The grant became the outcome of its asker. */
        boolean taken;
        /** For a release-many: one code per hold. */
        int[] codes;
        /** For an inspect: the state that the daemon has reported. */
        Inspection inspection;

        private volatile Answer answer;

        private Call(int op, Hold[] holds, Call target, Consumer<Call> then, Acquire asker) {
            this.op = op;
            this.holds = holds;
            this.hold = holds.length == 0 ? null : holds[0];
            this.target = target;
            this.then = then;
            this.asker = asker;
        }

        /** Makes a request about a hold, or about none. */
        Call(int op, Hold hold, Call target, Consumer<Call> then) {
            this(op, hold == null ? NONE : new Hold[] {hold}, target, then, null);
        }

        /** Makes a release-many. */
        Call(Hold[] holds, Consumer<Call> then) {
            this(Codes.RELEASE_MANY, holds, null, then, null);
        }

        /** Makes an acquire. */
        Call(Hold[] holds, Acquire asker) {
            this(asker.keys().op, holds, null, null, asker);
        }

        /** Gives it to a connection, under this id. */
        void begun(Conn on, long as) {
            id = as;
            conn = on;
        }

        @Override
        Conn conn() {
            return conn;
        }

        @Override
        boolean done() {
            return answer != null;
        }

        Answer answer() {
            return answer;
        }

        /** Returns the error that ended it without a reply, if it has this code. */
        boolean failedWith(LockException.Code code) {
            return answer.error != null && answer.error.code() == code;
        }

        /** Sets the answer, which is final. The caller then calls end, without a lock. */
        void answered(Answer a) {
            if (answer == null) {
                answer = a;
            }
        }

        /** Tells whether a thread waits for the end that may read the connection. */
        boolean readerWaits() {
            return asker != null ? asker.mayRead : mayRead;
        }

        void end() {
            if (asker != null) {
                asker.answered(this);
            } else if (then != null) {
                then.accept(this);
            } else {
                wake();
            }
        }
    }
}
