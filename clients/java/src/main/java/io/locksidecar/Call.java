package io.locksidecar;

import java.util.function.Consumer;

/** One request in flight. */
final class Call extends Wait {
    /** How a call ended: a reply's code, text and a number in it; or an error without a reply. */
    record Answer(int code, String text, long number, LockException error) {
        /** Returns a failure that says which key it is about. */
        Answer of(String key) {
            return new Answer(code, "\"" + key + "\": " + text, number, error);
        }
    }

    private static final Hold[] NONE = {};

    final int op;
    /** Of the holds that are asked for, or about. Those of an acquire become what is granted; guarded likewise. */
    final Hold[] holds;
    /** The first of them, as it was asked for; null without any. */
    final Hold hold;
    /** Hears of the end on the thread that brings it, without a lock; null when somebody waits. */
    final Consumer<Call> then;
    /** Whose acquire it is, or null. */
    final Acquire asker;
    /** Of a cancel: the call to be withdrawn. */
    final Call target;

    /** The request's id; guarded by the connection's lock. */
    long id;
    /** Nobody wants the grant any more; guarded by the connection's lock. */
    boolean abandoned;
    /** System.nanoTime beyond which no answer is expected; null for none. */
    Long limit;

    /** The grant became the outcome of its asker. */
    boolean taken;
    /** Of a release-many: one code a hold. */
    int[] codes;

    /** Of an inspect: the state that the daemon has reported. */
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

    /** Sets the answer, which is final; whoever does calls end after, without a lock. */
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
