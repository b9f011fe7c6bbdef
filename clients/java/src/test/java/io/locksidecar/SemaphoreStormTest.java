package io.locksidecar;

import static io.locksidecar.Until.background;
import static io.locksidecar.Until.running;
import static io.locksidecar.Until.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.locksidecar.LockException.Code;
import io.locksidecar.Until.Background;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;

/** There are never more holders than permits, with many clients and processes, under interrupts, and under cancels. */
class SemaphoreStormTest extends OnDaemon {
    private static final int PERMITS = 3;

    private SidecarSemaphore semaphore(Sidecar client) {
        return client.semaphore(key, PERMITS);
    }

    /** Checks that all permits can be acquired, and no more. A released permit may still be on its way. */
    private void allComeBack() throws InterruptedException {
        SidecarSemaphore all = semaphore(connect());
        List<Lease> had = new ArrayList<>();
        for (int i = 0; i < PERMITS; i++) {
            had.add(all.acquire(Duration.ofSeconds(Until.BOUND)));
        }
        assertTrue(all.tryAcquire().isEmpty());
        had.forEach(Lease::close);
    }

    /** Works under a permit. Each holder has a file meanwhile. */
    private static void turns(SidecarSemaphore semaphore, Path dir, int turns) throws Exception {
        for (int n = 0; n < turns; n++) {
            try (Lease permit = semaphore.acquire()) {
                Path mine = Files.createFile(dir.resolve(String.valueOf(permit.fence()))); // nobody else's
                assertTrue(permit.isValid());
                int inside = new File(dir.toString()).list().length;
                assertTrue(inside <= PERMITS, () -> inside + " are inside");
                Files.delete(mine);
            }
        }
    }

    /** Another process: its arguments are the socket, the key and the directory. */
    public static void main(String[] args) throws Exception {
        try (Sidecar client = Sidecar.create(Path.of(args[0]))) {
            turns(client.semaphore(args[1], PERMITS), Path.of(args[2]), 100);
        }
        System.out.println("done");
    }

    @Test
    void never_more_than_there_are_over_clients_and_processes() throws Exception {
        Path dir = Daemon.directory();
        List<Daemon.Program> programs = new ArrayList<>();
        try {
            for (int i = 0; i < 2; i++) {
                programs.add(new Daemon.Program(
                        SemaphoreStormTest.class, daemon.path.toString(), key, dir.toString()));
            }
            List<Background<Void>> workers = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                Sidecar client = connect();
                for (int t = 0; t < 3; t++) {
                    workers.add(running(() -> turns(semaphore(client), dir, 150)));
                }
            }
            workers.forEach(Background::result);
            for (Daemon.Program p : programs) {
                assertEquals("done", p.line());
            }
            allComeBack();
        } finally {
            programs.forEach(Daemon.Program::close);
            Daemon.delete(dir);
        }
    }

    @Test
    void a_process_that_is_killed_gives_back_what_it_held() throws IOException, InterruptedException {
        try (Daemon.Program p = new Daemon.Program(Holder.class, daemon.path.toString(), key)) {
            assertEquals("holding", p.line());
            assertTrue(semaphore(connect()).tryAcquire().isEmpty());
            CompletableFuture<Lease> next = semaphore(connect()).acquireAsync();
            p.process.destroyForcibly();
            next.join().close();
        }
        allComeBack();
    }

    /** A process that holds all permits, and does nothing more. */
    static final class Holder {
        public static void main(String[] args) throws InterruptedException {
            Sidecar client = Sidecar.create(Path.of(args[0]));
            for (int i = 0; i < PERMITS; i++) {
                client.semaphore(args[1], PERMITS).acquire();
            }
            System.out.println("holding");
            Thread.sleep(Long.MAX_VALUE);
        }
    }

    @Test
    void a_storm_of_interrupts_leaves_the_channel_alone() throws InterruptedException {
        Sidecar client = connect().connect();
        Conn conn = client.link.live();
        LockOptions mine = LockOptions.defaults().owner(Owner.create()); // told apart by their fences alone
        AtomicBoolean over = new AtomicBoolean();
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger interrupted = new AtomicInteger();
        AtomicInteger granted = new AtomicInteger();
        List<Background<Void>> workers = new ArrayList<>();
        for (int t = 0; t < 8; t++) {
            int me = t;
            workers.add(running(() -> {
                SidecarSemaphore semaphore = client.semaphore(key, PERMITS, mine);
                while (!over.get()) {
                    Lease permit;
                    try {
                        permit = me % 2 == 0
                                ? semaphore.acquire()
                                : semaphore.tryAcquire(Duration.ofMillis(50)).orElse(null);
                    } catch (InterruptedException e) {
                        interrupted.incrementAndGet();
                        continue;
                    }
                    if (permit == null) {
                        continue;
                    }
                    try (permit) { // interrupts come here too, and in the close
                        assertTrue(inside.incrementAndGet() <= PERMITS);
                        granted.incrementAndGet();
                        inside.decrementAndGet();
                    }
                }
            }));
        }
        for (int n = 0; interrupted.get() < 1500 || granted.get() == 0; n++) {
            Background<Void> w = workers.get(n % workers.size());
            if (w.isDone()) {
                break; // it failed, and says so below
            }
            w.thread.interrupt();
            LockSupport.parkNanos(20_000 + n % 50 * 4_000);
        }
        over.set(true);
        workers.stream().filter(Background::isDone).forEach(Background::result); // what failed, first
        workers.forEach(Background::result);
        assertSame(conn, client.link.live(), "the one connection lived through it");
        until("nothing is in flight", () -> Until.inFlight(conn) == 0);
        untilWaiting(client, key, Codes.PERMIT, 0);
        allComeBack();
    }

    @Test
    void whatever_is_cancelled_at_whatever_moment_leaves_nothing_held() throws InterruptedException {
        Sidecar client = connect();
        for (int n = 0; n < 1000; n++) {
            CompletableFuture<Lease> future = semaphore(client).acquireAsync();
            for (int spin = n % 97 * 60; spin > 0; spin--) {
                Thread.onSpinWait();
            }
            if (!future.cancel(true)) {
                future.join().close();
            }
        }
        until("nothing is in flight", () -> Until.inFlight(client.link.live()) == 0);
        allComeBack();
    }

    @Test
    void closing_the_client_releases_all_and_ends_every_wait() throws InterruptedException {
        Sidecar client = connect();
        List<LostException> heard = new CopyOnWriteArrayList<>();
        SidecarSemaphore semaphore = client.semaphore(key, PERMITS, LockOptions.defaults().onLost(heard::add));
        List<Lease> held = new ArrayList<>();
        for (int i = 0; i < PERMITS; i++) {
            held.add(semaphore.acquire());
        }
        Background<Lease> waiting = background(semaphore::acquire);
        untilWaiting(connect(), key, Codes.PERMIT, 1);
        client.close();
        Until.failed(Code.CLOSED, waiting.thrown());
        held.forEach(one -> assertThrows(LostException.class, one::close));
        Until.refused(Code.CLOSED, semaphore::tryAcquire);
        assertTrue(heard.isEmpty());
        allComeBack();
    }
}
