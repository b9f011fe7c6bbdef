package io.locksidecar;

import java.util.concurrent.locks.LockSupport;

/** Something that one thread may wait for. It parks; no lock is held and no channel touched. */
abstract class Wait {
    private volatile Thread waiter;

    /** Tells whether what is waited for has come. Whoever makes it true calls wake after. */
    abstract boolean done();

    final void wake() {
        Thread t = waiter;
        if (t != null) {
            LockSupport.unpark(t);
        }
    }

    /**
     * Waits until done, or until System.nanoTime has reached limit (null for none); false in that case.
     * An interrupt leaves what is waited for as it is.
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

    /** The same, except that an interrupt is kept for later. */
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

    /** Something that somebody sets. */
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
