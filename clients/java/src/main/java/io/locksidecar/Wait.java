package io.locksidecar;

import java.util.concurrent.locks.LockSupport;

/** Something that one thread may wait for. It parks; no lock is held and no channel is used. */
abstract class Wait {
    private volatile Thread waiter;

    /** Tells whether the awaited event has happened. The code that makes it true calls wake afterwards. */
    abstract boolean done();

    final void wake() {
        Thread t = waiter;
        if (t != null) {
            LockSupport.unpark(t);
        }
    }

    /**
     * Waits until done, or until System.nanoTime has reached limit (null for none); false in that case. An interrupt
     * does not change the awaited event.
     */
    final boolean await(Long limit) throws InterruptedException {
        waiter = Thread.currentThread();
        while (!done()) {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            if (limit == null) {
                LockSupport.park(this);
                continue;
            }
            long left = limit - System.nanoTime();
            if (left <= 0) {
                return false;
            }
            LockSupport.parkNanos(this, left);
        }
        return true;
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

    /** An event that code sets. */
    static final class Flag extends Wait {
        private volatile boolean set;

        @Override
        boolean done() {
            return set;
        }

        void set() {
            set = true;
            wake();
        }
    }
}
