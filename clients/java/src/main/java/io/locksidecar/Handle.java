package io.locksidecar;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * What a {@link SidecarLock}, or both locks of a {@link SidecarReadWriteLock}, hold by themselves: each thread that
 * acquires through it is an owner of its own.
 */
final class Handle {
    private final String kind;
    /** Owners by thread, for as long as they hold the lock, acquire it, or have not unlocked what they lost. */
    private final Map<Long, Long> owners = new ConcurrentHashMap<>(1);

    Handle(String kind) {
        this.kind = kind;
    }

    /** Returns the owner that the thread that runs has here; null without one. */
    Long owner() {
        return owners.get(Owner.ofThread());
    }

    /** Gives the thread that runs an owner here. */
    long begin() {
        long owner = Owner.next();
        owners.put(Owner.ofThread(), owner);
        return owner;
    }

    /** Forgets the owner of the thread that runs. */
    void end() {
        owners.remove(Owner.ofThread());
    }

    /** Returns how many threads have an owner here. */
    int owners() {
        return owners.size();
    }

    /** Names it as messages do. */
    @Override
    public String toString() {
        return kind + "@" + Integer.toHexString(System.identityHashCode(this));
    }
}
