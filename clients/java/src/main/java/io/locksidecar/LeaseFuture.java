package io.locksidecar;

import java.util.concurrent.CompletableFuture;

/** A lease to come. However it is completed by others, cancelled say, the acquire is withdrawn. */
final class LeaseFuture extends CompletableFuture<Lease> {
    private final Link link;
    private final LockOptions options;
    private final Acquire acquire;

    LeaseFuture(Link link, Key key, LockOptions options, long wait) {
        this.link = link;
        this.options = options;
        this.acquire = Holding.acquire(
                link, key, options.owner(), options, wait, () -> link.execute(this::deliver));
        whenComplete((lease, e) -> acquire.giveUp(null));
        acquire.start();
    }

    /** Completes with the outcome, on the executor. */
    private void deliver() {
        if (!acquire.settled()) {
            if (isDone()) { // it goes on, for nobody
                acquire.giveUp(null);
            }
            return;
        }
        Hold hold;
        try {
            hold = Holding.hold(acquire.outcome(), options);
        } catch (LockException e) {
            completeExceptionally(e);
            return;
        }
        if (hold == null) {
            completeExceptionally(new NotAcquiredException(
                    "lock \"" + acquire.id().key() + "\" could not be had in time"));
            return;
        }
        Lease lease = new Lease(hold, options.isShared());
        if (!complete(lease)) { // granted after it was cancelled
            lease.releaseAsync();
        }
    }
}
