package io.locksidecar.chaos;

import io.locksidecar.Lease;
import io.locksidecar.LockException;
import io.locksidecar.LockOptions;
import io.locksidecar.Owner;
import io.locksidecar.SidecarSemaphore;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** One owner of a worker: a thread that acquires leases, works under them, and releases them. */
final class Caller implements Runnable {
    private static final long MILLI = 1_000_000;
    private static final int SHARED = 1;
    private static final int PERMIT = 2;

    private final Worker worker;
    private final int no;
    private final Owner owner = Owner.create();
    private final Random random;
    private final long ttl;
    private final Socket register;
    private final BufferedReader answers;

    /** The terms of an acquire. */
    private record Terms(List<String> keys, int mode, int permits, long bound, long of) {}

    Caller(Worker worker, int no) throws IOException {
        this.worker = worker;
        this.no = no;
        random = new Random(worker.orders.get("seed").hashCode() * 31L + number("worker") * 100 + no);
        ttl = number("ttl") * MILLI;
        String[] at = worker.orders.get("register").split(":");
        register = new Socket(at[0], Integer.parseInt(at[1]));
        register.setTcpNoDelay(true);
        answers = new BufferedReader(new InputStreamReader(register.getInputStream(), StandardCharsets.UTF_8));
    }

    private int number(String order) {
        return Integer.parseInt(worker.orders.get(order));
    }

    @Override
    public void run() {
        try {
            while (!worker.stopped) {
                if (!turn()) {
                    Thread.sleep(random.nextInt(100));
                }
                Thread.sleep(random.nextInt(number("pause")));
            }
            register.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Makes one acquire and does what follows from it; false if there was no answer. */
    private boolean turn() throws IOException, InterruptedException {
        Terms terms = choose();
        Held held;
        try {
            held = acquire(terms);
        } catch (LockException e) {
            return false;
        }
        if (held == null) {
            return true;
        }
        held.look();
        inside(terms, held);
        held.leave();
        return true;
    }

    /** Acquires a permit, one lock or several. */
    private Terms choose() {
        int kind = random.nextInt(10);
        int mode = random.nextInt(5) == 0 ? SHARED : 0;
        int how = random.nextInt(20);
        long wait = how < 4 ? 0 : how < 7 ? -1 : 200 + random.nextInt(2000);
        int semaphores = number("semaphores");
        if (kind < 2 && semaphores > 0) {
            int i = random.nextInt(semaphores);
            return new Terms(List.of(worker.orders.get("prefix") + i), PERMIT, 2 + i, wait, 0);
        }
        int all = number("keys");
        List<String> keys = IntStream.range(0, all).mapToObj(i -> worker.orders.get("prefix") + i).collect(Collectors.toList());
        Collections.shuffle(keys, random);
        return new Terms(keys.subList(0, kind < 4 ? 2 + random.nextInt(2) : 1), mode, 0, wait, 0);
    }

    /** Acquires, and records everything; returns null if it was not granted. */
    private Held acquire(Terms terms) throws InterruptedException {
        List<Long> numbers = new ArrayList<>();
        for (String key : terms.keys) {
            numbers.add(worker.acquires.incrementAndGet());
            worker.note("ask", worker.now(), ",\"n\":" + numbers.get(numbers.size() - 1) + ",\"k\":\"" + key + "\",\"o\":" + no + ",\"m\":"
                    + terms.mode + ",\"wait\":" + terms.bound + field("p", terms.permits) + field("of", terms.of)
                    + field("g", terms.keys.size() > 1 ? numbers.get(0) : 0));
        }
        Held held;
        try {
            held = request(terms, numbers);
        } catch (LockException e) {
            got(numbers, Worker.word(e));
            throw e;
        }
        if (held == null) {
            got(numbers, terms.bound == 0 ? "busy" : "timeout");
            return null;
        }
        long at = worker.now();
        long until = at + held.remaining();
        for (int i = 0; i < numbers.size(); i++) {
            worker.note("got", at, ",\"n\":" + numbers.get(i) + ",\"r\":\"ok\",\"f\":" + held.fence(i) + ",\"u\":" + until);
        }
        return held;
    }

    private static String field(String name, long value) {
        return value == 0 ? "" : ",\"" + name + "\":" + value;
    }

    private void got(List<Long> numbers, String how) {
        for (long n : numbers) {
            worker.note("got", worker.now(), ",\"n\":" + n + ",\"r\":\"" + how + "\"");
        }
    }

    private Held request(Terms terms, List<Long> numbers) throws InterruptedException {
        LockOptions options = LockOptions.defaults().owner(owner);
        if (terms.mode == SHARED) {
            options = options.shared();
        }
        Duration wait = Duration.ofMillis(terms.bound);
        if (terms.keys.size() > 1) {
            Optional<Lease> several = terms.bound < 0
                    ? Optional.of(worker.sidecar.leaseAll(terms.keys, options))
                    : worker.sidecar.tryLeaseAll(terms.keys, wait, options);
            return several.map(s -> new Held(worker, numbers, null, s)).orElse(null);
        }
        String key = terms.keys.get(0);
        Optional<Lease> one;
        if (terms.mode == PERMIT) {
            SidecarSemaphore semaphore = worker.sidecar.semaphore(key, terms.permits, options);
            one = terms.bound < 0 ? Optional.of(semaphore.acquire()) : semaphore.tryAcquire(wait);
        } else {
            one = terms.bound < 0 ? Optional.of(worker.sidecar.lease(key, options)) : worker.sidecar.tryLease(key, wait, options);
        }
        return one.map(o -> new Held(worker, numbers, o, null)).orElse(null);
    }

    /** Works on the guarded registers under the hold, for a moment or longer. */
    private void inside(Terms terms, Held held) throws IOException, InterruptedException {
        boolean some = random.nextInt(5) == 0;
        boolean single = terms.keys.size() == 1;
        if (terms.mode == PERMIT) {
            Held another = some ? more(terms, 0) : null;
            if (another != null) {
                another.look();
                stay(another);
                another.leave();
            }
            stay(held);
            return;
        }
        if (terms.mode == SHARED) {
            stay(held);
            return;
        }
        Held again = some && single ? more(terms, held.numbers.get(0)) : null;
        write(terms, held);
        if (again != null) {
            again.leave();
        }
        if (single && random.nextInt(5) == 0) {
            held.lower();
            stay(held);
            again = some ? more(terms, held.numbers.get(0)) : null; // this is refused
            if (again != null) {
                again.leave();
            }
        }
    }

    /** Acquires the same key once more. */
    private Held more(Terms terms, long of) throws InterruptedException {
        try {
            return acquire(new Terms(terms.keys, terms.mode, terms.permits, of == 0 ? 200 : 1000, of));
        } catch (LockException e) {
            return null;
        }
    }

    /** Increments each register of each key. Some time passes between the read and the write. */
    private void write(Terms terms, Held held) throws IOException, InterruptedException {
        int n = terms.keys.size();
        Integer[] values = new Integer[n];
        Integer[] plain = new Integer[n];
        String[] who = new String[n];
        for (int i = 0; i < n; i++) {
            who[i] = terms.keys.get(i) + " " + held.fence(i) + " " + worker.orders.get("worker") + "/" + held.numbers.get(i);
            values[i] = ask("fr " + who[i]);
            plain[i] = ask("ur " + terms.keys.get(i));
        }
        stay(held);
        for (int i = 0; i < n; i++) {
            if (values[i] != null) {
                ask("fw " + who[i] + " " + (values[i] + 1));
            }
            if (held.look()) {
                ask("uw " + terms.keys.get(i) + " " + (plain[i] + 1));
            }
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

    /**
     * Waits for a time that is mostly short, sometimes longer, and rarely longer than a TTL. For one key, each fourth
     * worker often waits that long.
     */
    private void stay(Held held) throws InterruptedException {
        int kind = random.nextInt(100);
        int often = number("worker") % 4 == 3 && held.numbers.size() == 1 ? 25 : 2;
        long time = kind < often ? ttl * 3 / 2 : kind < often + 13 ? (long) (random.nextDouble() * ttl / 5) : random.nextInt((int) (10 * MILLI));
        for (long end = worker.now() + time; held.look() && worker.now() < end; ) {
            Thread.sleep(Math.max(0, Math.min(5, (end - worker.now()) / MILLI)));
        }
    }
}
