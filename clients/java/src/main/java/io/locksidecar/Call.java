package io.locksidecar;

import java.util.function.Consumer;

/** One request in flight. */
final class Call extends Wait {
    /** The end of a call: a reply's code, its text and a number in it; or an error without a reply. */
    record Answer(int code, String text, long number, LockException error) {
        /** Returns a failure that names the key. */
        Answer of(String key) {
            return new Answer(code, "\"" + key + "\": " + text, number, error);
        }
    }

    private static final Hold[] NONE = {};

    final int op;
    /**
     * The holds that the request names. For an acquire, the granted holds replace them. Guarded by the connection's
     * lock.
     */
    final Hold[] holds;
    /** The first hold of the request; null without any. */
    final Hold hold;
    /** Is called at the end by the thread that brings it, without a lock; null if a thread waits. */
    final Consumer<Call> then;
    /** The acquire that the call belongs to, or null. */
    final Acquire asker;
    /** For a cancel: the call to be withdrawn. */
    final Call target;

    /** The request's id; guarded by the connection's lock. */
    long id;
    /** The grant is no longer wanted; guarded by the connection's lock. */
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
        this(asker.keys().many() ? Codes.ACQUIRE_MANY : Codes.ACQUIRE, holds, null, asker::answered, asker);
    }

    @Override
    boolean done() {
        return answer != null;
    }

    Answer answer() {
        return answer;
    }

    /** Sets the answer, which is final. The caller then calls end, without a lock. */
    void answered(Answer a) {
        if (answer == null) {
            answer = a;
        }
    }

    void end() {
        if (then != null) {
            then.accept(this);
        } else {
            wake();
        }
    }
}
