package io.locksidecar;

import java.util.Objects;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Names a holder of locks that is not a thread: a request, a job, a chain of reactive stages.
 *
 * <p>All acquires of a key with one owner, through one {@link Sidecar}, are one hold. The first waits for its turn, the
 * others are granted at once, and each has to be released. Different owners exclude each other, even on one thread. Two
 * tasks that share an owner do <em>not</em> exclude each other.
 *
 * <p>Two owners are equal only if they are the same object; the name does not matter. An owner has no state and needs
 * no closing.
 */
public final class Owner {
    /** Numbers owners of all kinds. None is used again. */
    private static final AtomicLong NUMBERS = new AtomicLong();

    /**
     * A thread's number. It is a Long, so that threads do not keep the class loader of code that they once ran. A
     * thread's own id is not used, since ids are reused, and subclasses may return any id.
     */
    private static final ThreadLocal<Long> THREADS = ThreadLocal.withInitial(Owner::next);

    final long number = next();
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
     * Makes an owner with a name, which is only for people.
     *
     * @param name for {@link #toString}
     * @return a new one, different from all others
     */
    public static Owner named(String name) {
        return new Owner(Objects.requireNonNull(name, "name"));
    }

    /** Returns a number that was not used before. */
    static long next() {
        return NUMBERS.incrementAndGet();
    }

    /** Returns the number of the current thread, which may be a virtual one, for as long as it lives. */
    static Long ofThread() {
        return THREADS.get();
    }

    @Override
    public String toString() {
        return name + "#" + number;
    }
}
