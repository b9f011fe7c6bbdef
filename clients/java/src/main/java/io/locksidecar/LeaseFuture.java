package io.locksidecar;

import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Function;

/** A lease, or leases, to come. If it is completed in another way, for example cancelled, the acquire is withdrawn. */
final class LeaseFuture<T> extends CompletableFuture<T> {
    private final Link link;
    private final Acquire acquire;
    /** Converts an outcome to the result, or to null if another owner has the lock. */
    private final Function<Object, T> make;
    private final Consumer<T> release;

    LeaseFuture(Link link, Keys keys, LockOptions options, long wait, Function<Object, T> make, Consumer<T> release) {
        this.link = link;
        this.make = make;
        this.release = release;
        this.acquire = Holding.acquire(link, keys, options, wait, null, () -> link.execute(this::deliver));
        whenComplete((lease, e) -> acquire.giveUp(null));
        acquire.start();
    }

    /** Completes with the outcome, on the executor. */
    private void deliver() {
        if (!acquire.settled()) {
            if (isDone()) { // the acquire continues, but is not wanted any more
                acquire.giveUp(null);
            }
            return;
        }
        T lease;
        try {
            lease = make.apply(acquire.outcome());
        } catch (RuntimeException | Error e) {
            completeExceptionally(e);
            return;
        }
        if (lease == null) {
            completeExceptionally(Holding.notAcquired(
                    acquire.keys(), acquire.outcome(), "not acquired in time"));
        } else if (!complete(lease)) { // it was granted after it was cancelled
            release.accept(lease);
        }
    }
}
