package io.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.function.Executable;

/** The waits of tests: for a condition, within a bound that even a busy machine keeps. */
final class Until {
    static final long BOUND = 60;

    private Until() {}

    static void until(String what, Callable<Boolean> condition) {
        long end = System.nanoTime() + BOUND * 1_000_000_000;
        try {
            while (!condition.call()) {
                assertTrue(System.nanoTime() - end < 0, "not in time: " + what);
                Thread.sleep(2);
            }
        } catch (RuntimeException | Error e) {
            throw e;
        } catch (Exception e) {
            throw new AssertionError(what, e);
        }
    }

    /** Checks that a call throws an exception with this code. */
    static LockException refused(Code code, Executable call) {
        return failed(code, assertThrows(LockException.class, call));
    }

    /** Checks that an exception has this code. */
    static LockException failed(Code code, Throwable thrown) {
        LockException e = assertInstanceOf(LockException.class, thrown);
        assertEquals(code, e.code(), e::toString);
        return e;
    }

    /** Returns the number of requests that wait for their replies. */
    static int inFlight(Conn conn) {
        conn.mu.lock();
        try (conn.mu) {
            return conn.pending.size();
        }
    }

    /** Runs a task in a thread of its own. */
    static <T> Background<T> background(Callable<T> task) {
        return new Background<>(task);
    }

    /** A task without a result. */
    interface Task {
        void run() throws Exception;
    }

    static Background<Void> running(Task task) {
        return new Background<>(() -> {
            task.run();
            return null;
        });
    }

    static final class Background<T> {
        final Thread thread;
        private final CompletableFuture<T> done = new CompletableFuture<>();

        Background(Callable<T> task) {
            thread = new Thread(() -> {
                try {
                    done.complete(task.call());
                } catch (Throwable e) {
                    done.completeExceptionally(e);
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        boolean isDone() {
            return done.isDone();
        }

        /** Waits for the end, and throws the exception of the task. */
        T result() {
            try {
                return done.get(BOUND, TimeUnit.SECONDS);
            } catch (ExecutionException e) {
                if (e.getCause() instanceof RuntimeException r) {
                    throw r;
                }
                throw new AssertionError(e.getCause());
            } catch (InterruptedException | TimeoutException e) {
                throw new AssertionError("still running: " + java.util.List.of(thread.getStackTrace()), e);
            }
        }

        /** Waits for the end, and returns the exception of the task. */
        Throwable thrown() {
            try {
                T got = done.get(BOUND, TimeUnit.SECONDS);
                throw new AssertionError("returned " + got);
            } catch (ExecutionException e) {
                return e.getCause();
            } catch (InterruptedException | TimeoutException e) {
                throw new AssertionError("still running: " + java.util.List.of(thread.getStackTrace()), e);
            }
        }
    }
}
