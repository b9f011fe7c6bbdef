package io.locksidecar.chaos;

import io.locksidecar.Lease;
import io.locksidecar.LockException;
import io.locksidecar.LockOptions;
import io.locksidecar.Owner;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Optional;
import java.util.Random;

/** One owner of a worker: a thread that takes leases, works under them, and gives them up. */
final class Caller implements Runnable {
    private static final long MILLI = 1_000_000;

    private final Worker worker;
    private final int no;
    private final Owner owner = Owner.create();
    private final Random random;
    private final long ttl;
    private final Socket register;
    private final BufferedReader answers;

    // Of the hold that it is inside.
    private Lease lease;
    private String key;
    private long n;
    private long said;
    private String last; // the last look that found it valid, unless noted
    private long lastAt;
    private boolean gone;

    Caller(Worker worker, int no) throws IOException {
        this.worker = worker;
        this.no = no;
        random = new Random(worker.orders.get("seed").hashCode() * 31L + Long.parseLong(worker.orders.get("worker")) * 100 + no);
        ttl = Long.parseLong(worker.orders.get("ttl")) * MILLI;
        String[] at = worker.orders.get("register").split(":");
        register = new Socket(at[0], Integer.parseInt(at[1]));
        register.setTcpNoDelay(true);
        answers = new BufferedReader(new InputStreamReader(register.getInputStream(), StandardCharsets.UTF_8));
    }

    @Override
    public void run() {
        try {
            while (!worker.stopped) {
                if (!turn()) {
                    Thread.sleep(random.nextInt(100));
                }
                Thread.sleep(random.nextInt(Integer.parseInt(worker.orders.get("pause"))));
            }
            register.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Is one acquire with what comes after it; false when there was no answer. */
    private boolean turn() throws IOException, InterruptedException {
        key = worker.orders.get("prefix") + random.nextInt(Integer.parseInt(worker.orders.get("keys")));
        boolean shared = random.nextInt(5) == 0;
        int kind = random.nextInt(20);
        long wait = kind < 4 ? 0 : kind < 7 ? -1 : 200 + random.nextInt(2000);
        said = 0;
        last = null;
        gone = false;
        n = worker.acquires.incrementAndGet();
        try {
            lease = acquire(n, wait, shared, 0);
        } catch (LockException e) {
            worker.note("got", worker.now(), ",\"n\":" + n + ",\"r\":\"" + Worker.word(e) + "\"");
            return false;
        }
        if (lease == null) {
            return true;
        }
        look();
        if (shared) {
            stay();
        } else {
            again();
        }
        look();
        tell();
        release(n, lease);
        return true;
    }

    private Lease acquire(long number, long wait, boolean shared, long of) throws InterruptedException {
        LockOptions options = LockOptions.defaults().owner(owner);
        if (shared) {
            options = options.shared();
        }
        worker.note("ask", worker.now(), ",\"n\":" + number + ",\"k\":\"" + key + "\",\"o\":" + no + ",\"m\":" + (shared ? 1 : 0)
                + ",\"wait\":" + wait + (of == 0 ? "" : ",\"of\":" + of));
        Optional<Lease> got = wait < 0
                ? Optional.of(worker.sidecar.lease(key, options))
                : worker.sidecar.tryLease(key, Duration.ofMillis(wait), options);
        if (got.isEmpty()) {
            worker.note("got", worker.now(), ",\"n\":" + number + ",\"r\":\"" + (wait == 0 ? "busy" : "timeout") + "\"");
            return null;
        }
        long at = worker.now();
        long until = at + got.get().remaining().toNanos();
        worker.note("got", at, ",\"n\":" + number + ",\"r\":\"ok\",\"f\":" + got.get().fence() + ",\"u\":" + until);
        return got.get();
    }

    /** Writes, and sometimes takes the lock once more for that time. */
    private void again() throws IOException, InterruptedException {
        Lease inner = null;
        long number = 0;
        if (random.nextInt(5) == 0) {
            number = worker.acquires.incrementAndGet();
            try {
                inner = acquire(number, 1000, false, n);
            } catch (LockException e) {
                worker.note("got", worker.now(), ",\"n\":" + number + ",\"r\":\"" + Worker.word(e) + "\"");
            }
        }
        write();
        if (inner != null) {
            release(number, inner);
        }
    }

    /** Writes one more in each register, with a while between the reading and the writing. */
    private void write() throws IOException, InterruptedException {
        String who = worker.orders.get("worker") + "/" + n;
        Integer value = ask("fr " + key + " " + lease.fence() + " " + who);
        Integer plain = ask("ur " + key);
        stay();
        if (value != null) {
            ask("fw " + key + " " + lease.fence() + " " + who + " " + (value + 1));
        }
        if (look()) {
            ask("uw " + key + " " + (plain + 1));
        }
    }

    private Integer ask(String line) throws IOException {
        register.getOutputStream().write((line + "\n").getBytes(StandardCharsets.UTF_8));
        String answer = answers.readLine();
        if (answer == null || !answer.startsWith("ok")) {
            return null;
        }
        return answer.length() > 3 ? Integer.valueOf(answer.substring(3)) : Integer.valueOf(0);
    }

    /** Asks whether it is still held, and notes what has become known. */
    private boolean look() {
        long at = worker.now();
        long left = lease.remaining().toNanos();
        if (left <= 0) {
            if (!gone) {
                gone = true;
                tell();
                worker.note("lost", worker.now(), ",\"n\":" + n + ",\"r\":\"lost\"");
            }
            return false;
        }
        long until = at + left;
        String state = ",\"n\":" + n + ",\"u\":" + until;
        if (until > said + 10 * MILLI) {
            worker.note("state", at, state);
            said = until;
            last = null;
        } else {
            last = state;
            lastAt = at;
        }
        return !gone;
    }

    private void tell() {
        if (last != null) {
            worker.note("state", lastAt, last);
            last = null;
        }
    }

    /** Is mostly short, sometimes longer, and seldom longer than a TTL; but each fourth worker's is that long often. */
    private void stay() throws InterruptedException {
        int kind = random.nextInt(100);
        int often = Integer.parseInt(worker.orders.get("worker")) % 4 == 3 ? 25 : 2;
        long time = kind < often ? ttl * 3 / 2 : kind < often + 13 ? (long) (random.nextDouble() * ttl / 5) : random.nextInt((int) (10 * MILLI));
        for (long end = worker.now() + time; look() && worker.now() < end; ) {
            Thread.sleep(Math.max(0, Math.min(5, (end - worker.now()) / MILLI)));
        }
    }

    private void release(long number, Lease one) {
        worker.note("give", worker.now(), ",\"n\":" + number);
        String how = "ok";
        try {
            one.close();
            how = gone ? "gone" : "ok"; // a connection that ended is release too, but not what the daemon said
        } catch (LockException e) {
            how = Worker.word(e);
        }
        worker.note("gave", worker.now(), ",\"n\":" + number + ",\"r\":\"" + how + "\"");
    }
}
