package io.locksidecar;

import java.lang.ref.WeakReference;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The owners of a {@link SidecarLock}, or of both locks of a {@link SidecarReadWriteLock}: each thread that acquires through
 * it is a separate owner.
 */
final class Handle {
    private final Ref ref;
    /** Owners by thread, while they hold the lock, acquire it, or have a lost hold that they have not unlocked. */
    private final Map<Long, Long> owners = new ConcurrentHashMap<>(1);

    Handle(String kind) {
        this.ref = new Ref(this, kind);
    }

    /** Names a handle in messages, without keeping it in memory. */
    static final class Ref extends WeakReference<Handle> {
        private final String kind;

        private Ref(Handle handle, String kind) {
            super(handle);
            this.kind = kind;
        }

        @Override
        public String toString() {
            return kind + "@" + Integer.toHexString(System.identityHashCode(this));
        }
    }

    Ref ref() {
        return ref;
    }

    /** Returns the current thread's owner; null without one. */
    Long owner() {
        return owners.get(Owner.ofThread());
    }

    /** Gives the current thread a new owner. */
    long begin() {
        long owner = Owner.next();
        owners.put(Owner.ofThread(), owner);
        return owner;
    }

    /** Forgets the current thread's owner. */
    void end() {
        owners.remove(Owner.ofThread());
    }

    /** Returns the number of owners. */
    int owners() {
        return owners.size();
    }

    /** Returns its name in messages. */
    @Override
    public String toString() {
        return ref.toString();
    }
}
