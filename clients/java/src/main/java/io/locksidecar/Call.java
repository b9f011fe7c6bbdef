package io.locksidecar;

import java.util.function.Consumer;

/** One request in flight. */
final class Call extends Wait {
    /** How a call ended: a reply's code, text and first number; or an error without a reply. */
    record Answer(int code, String text, long number, LockException error) {}

    final int op;
    /** Of the hold that is asked for, or about. */
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

    private volatile Answer answer;

    Call(int op, Hold hold, Call target, Consumer<Call> then) {
        this.op = op;
        this.hold = hold;
        this.target = target;
        this.then = then;
        this.asker = null;
    }

    /** Makes an acquire. */
    Call(Hold hold, Acquire asker) {
        this.op = Codes.ACQUIRE;
        this.hold = hold;
        this.target = null;
        this.then = asker::answered;
        this.asker = asker;
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
