package user;

import io.locksidecar.Lease;
import io.locksidecar.Sidecar;

/** What a stranger writes first. */
public final class User {
    private User() {}

    public static void main(String[] args) throws InterruptedException {
        try (Sidecar sidecar = Sidecar.create();
                Lease lease = sidecar.lease("User.java")) {
            if (lease.fence() <= 0 || !lease.isValid()) {
                throw new IllegalStateException("no fence");
            }
        }
        System.out.println(versionOf(Sidecar.class));
    }

    /** A module on the module path has no package version; its jar's manifest says it. */
    private static String versionOf(Class<?> c) {
        return c.getModule().getDescriptor().rawVersion().orElseThrow();
    }
}
