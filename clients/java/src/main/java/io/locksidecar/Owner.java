package io.locksidecar;

import java.util.Objects;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Names who holds a lock where that is not a thread: a request, a job, a chain of reactive stages.
 *
 * <p>All acquires of a key with one owner, through one {@link Sidecar}, are one hold: the first waits its turn,
 * the others are granted at once, and each has to be released. Different owners exclude each other, on one
 * thread as well. An owner that two tasks share does <em>not</em> keep these two apart.
 *
 * <p>An owner is itself and nothing else: two of the same name are two. It has no state and needs no closing.
 */
public final class Owner {
    /** Numbers owners of all kinds. None is used again. */
    private static final AtomicLong NUMBERS = new AtomicLong();

    /**
     * A thread's number. A Long, so that a class loader is not kept by the threads that once ran its code; a
     * thread's own id is not used, since ids come again, and subclasses may return what they like.
     */
    private static final ThreadLocal<Long> THREADS = ThreadLocal.withInitial(Owner::next);

    private final long number = next();
    private final String name;

    private Owner(String name) {
        this.name = name;
    }

    /**
     * Makes an owner.
     *
     * @return a new one, different from all others
     */
    public static Owner create() {
        return new Owner("owner");
    }

    /**
     * Makes an owner with a name, which people see and nothing else looks at.
     *
     * @param name for {@link #toString}
     * @return a new one, different from all others
     */
    public static Owner named(String name) {
        return new Owner(Objects.requireNonNull(name, "name"));
    }

    long number() {
        return number;
    }

    /** Returns a number that nobody has. */
    static long next() {
        return NUMBERS.incrementAndGet();
    }

    /** Returns the number of the thread that runs, virtual ones included, for as long as it lives. */
    static long ofThread() {
        return THREADS.get();
    }

    @Override
    public String toString() {
        return name + "#" + number;
    }
}
