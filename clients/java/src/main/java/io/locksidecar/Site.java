package io.locksidecar;

/**
 * The place of an acquire that blocks its thread. It serves to detect that a thread would wait for itself.
 *
 * @param thread the thread's number, as in {@link Owner#ofThread}
 * @param handle the object that acquires; its toString names it
 * @param bound only this thread can release the hold
 * @param named the caller named an {@link Owner}: any thread that knows the owner may release the hold
 */
record Site(long thread, Object handle, boolean bound, boolean named) {

    /** Returns the exception for an acquire that would wait for a hold of its own thread. */
    static AlreadyHeldException alreadyHeld(Hold hold) {
        return new AlreadyHeldException("key \"" + hold.id.key() + "\" is already held in this thread by another handle ("
                + hold.site.handle + ", fence " + hold.fence + "); use that handle, or set LockOptions.owner(...) for"
                + " both to share the hold");
    }
}
