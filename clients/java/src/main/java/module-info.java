/**
 * Distributed locks from the locksidecar daemon on this host. Needs nothing but {@code java.base}.
 */
module io.locksidecar.client {
    exports io.locksidecar;
}
