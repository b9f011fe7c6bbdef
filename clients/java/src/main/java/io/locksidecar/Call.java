package io.locksidecar;

import java.util.function.Consumer;

/** One request in flight. */
final class Call extends Wait {
    final int op;
    /** The acquire that the call belongs to, or null. */
    final Acquire asker;
    /** Is called when the call has ended, without a lock, on any thread; null if a thread waits, or for an acquire. */
    final Consumer<Call> then;
    /** The holds that the request names. For an acquire, the granted holds replace them. Guarded by mu of conn. */
    Hold[] holds;
    /** The first hold of the request; null without any. */
    final Hold hold;
    /** For a cancel: the call to be withdrawn. Guarded by mu of conn. */
    Call target;

    /** The connection on which it was sent; null before that. */
    volatile Conn conn;
    /** The request's id; guarded by mu of conn. */
    Long id;
    /** The grant is no longer wanted; guarded by mu of conn. */
    boolean abandoned;
    /** System.nanoTime until which an answer is expected; null for no limit. */
    Long limit;
    /** The grant has become the outcome of the acquire. */
    boolean taken;
    /** This is a release that frees a kept hold, which the end of the connection would not do. Set before it is sent. */
    boolean frees;
    /** For a release-many: one code per hold. */
    int[] codes;
    /** For an inspect: the state that the daemon has reported. */
    Inspection inspection;
    /** Null until the end; see {@link #answered}. */
    volatile Answer answer;

    Call(int op, Acquire asker, Consumer<Call> then, Hold... holds) {
        this.op = op;
        this.asker = asker;
        this.then = then;
        this.holds = holds;
        this.hold = holds.length == 0 ? null : holds[0];
    }

    @Override
    Conn conn() {
        return conn;
    }

    @Override
    boolean done() {
        return answer != null;
    }

    /** Returns the error that ended it without a reply, if it has this code. */
    boolean failedWith(LockException.Code code) {
        return answer.error() != null && answer.error().code() == code;
    }

    /** Sets the answer, which is final. The caller then calls end, without a lock. */
    void answered(Answer a) {
        if (answer == null) {
            answer = a;
        }
    }

    /** Tells whether the thread that waits for the call may read the connection. */
    boolean readerWaits() {
        return asker != null ? asker.mayRead : mayRead;
    }

    /** Tells the acquire, the callback or the waiting thread that the call has ended. */
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
