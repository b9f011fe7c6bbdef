package io.locksidecar;

import java.lang.ref.WeakReference;

/**
 * The place of an acquire that blocks its thread. It serves to detect that a thread would wait for itself.
 *
 * @param thread the thread's number, as in {@link Owner#ofThread}
 * @param inThread the thread itself
 * @param handle what acquires, by its toString; it must not refer to a handle or lease
 * @param bound only this thread can release the hold
 * @param named the caller named an {@link Owner}: any thread that knows the owner may release the hold
 * @param term the hold of the same client's term in whose onElected the thread is; null in none
 */
record Site(
        long thread, WeakReference<Thread> inThread, Object handle, boolean bound, boolean named, Hold term) {

    /** Returns a place in the current thread, of an acquire by that client. */
    static Site here(Link link, Object handle, boolean bound, boolean named) {
        Thread here = Thread.currentThread();
        return new Site(Owner.ofThread(), new WeakReference<>(here), handle, bound, named, Campaign.termIn(here, link));
    }

    /** Returns the exception for an acquire that would wait for a hold of its own thread. */
    static AlreadyHeldException alreadyHeld(Hold hold) {
        return new AlreadyHeldException("key \"" + hold.id.key() + "\" is already held in this thread by another handle ("
                + hold.site.handle + ", fence " + hold.fence + "); use that handle, or set LockOptions.owner(...) for"
                + " both to share the hold");
    }
}
