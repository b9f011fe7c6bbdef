module user {
    requires io.locksidecar.client;
}
