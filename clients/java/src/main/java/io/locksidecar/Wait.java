package io.locksidecar;

import java.util.concurrent.locks.LockSupport;

/**
 * An event that one thread may wait for, without a lock. If no other thread reads the connection that brings the event, the
 * waiting thread reads it itself; see {@link Conn#lead}. Otherwise it parks.
 */
abstract class Wait {
    private volatile Thread waiter;
    /** The connection that the waiting thread reads; null if it does not. */
    volatile Conn reads;
    /** The waiting thread is a platform thread, which may read. */
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
            // done is checked again, because a lock in lead may have used up the permit of a wake.
            if (c != null && (c.lead(this, limit) || done())) {
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

    /** Waits until a thread has ended, for at most so many nanoseconds; true if the current thread was interrupted. */
    static boolean join(Thread thread, long nanos) {
        boolean interrupted = false;
        long end = System.nanoTime() + nanos;
        for (long left = nanos; thread.isAlive() && left > 0; left = end - System.nanoTime()) {
            try {
                thread.join(left / 1_000_000 + 1);
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        return interrupted;
    }

    /** A value that other code sets; not null. */
    static final class Value<T> extends Wait {
        private final Conn conn;
        volatile T value;

        /** Makes a value that is set when the connection is read; null if no connection brings it. */
        Value(Conn conn) {
            this.conn = conn;
        }

        @Override
        boolean done() {
            return value != null;
        }

        @Override
        Conn conn() {
            return conn;
        }

        void set(T v) {
            value = v;
            wake();
        }
    }
}
