package io.locksidecar;

/**
 * Where an acquire was made that blocks its thread, so that a thread is told when it would wait for itself.
 *
 * @param thread the thread's number, as in {@link Owner#ofThread}
 * @param handle what acquires; its toString names it
 * @param bound only this thread can release what is granted
 * @param named the caller named an {@link Owner}: whoever knows that may release what is granted
 */
record Site(long thread, Object handle, boolean bound, boolean named) {

    /** Returns the exception for an acquire that would wait for a hold of its own thread. */
    static AlreadyHeldException alreadyHeld(Hold hold) {
        return new AlreadyHeldException("key \"" + hold.id.key() + "\" is already held in this thread by another handle ("
                + hold.site.handle + ", fence " + hold.fence + "); use that handle, or set LockOptions.owner(...) for"
                + " both to share the hold");
    }
}
