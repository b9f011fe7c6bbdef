import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's own lock as somebody else's program uses it. It takes lines "id verb path [ms]" on
 * standard input and answers each with "id result": verbs are try (acquire within ms: yes or no),
 * lock (acquire, however long it takes: yes), unlock (done) and drop, which ends the process as a
 * crash does. A mutex belongs to the thread that has it: each path has one thread.
 */
public final class Locker {
    private static final Map<String, InterProcessMutex> mutexes = new HashMap<>();
    private static final Map<String, ExecutorService> threads = new HashMap<>();

    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(args[0])
                .sessionTimeoutMs(Integer.parseInt(args[1]))
                .connectionTimeoutMs(10_000)
                .retryPolicy(new ExponentialBackoffRetry(50, 5))
                .build();
        client.start();
        client.blockUntilConnected();
        answer("0 ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] f = line.split(" ");
            if (f[1].equals("drop")) {
                Runtime.getRuntime().halt(1);
            }
            InterProcessMutex mutex = mutexes.computeIfAbsent(f[2], p -> new InterProcessMutex(client, p));
            threads.computeIfAbsent(f[2], p -> Executors.newSingleThreadExecutor()).execute(() -> {
                try {
                    answer(f[0] + " " + carryOut(mutex, f));
                } catch (Exception e) {
                    answer(f[0] + " error: " + e);
                }
            });
        }
        threads.values().forEach(ExecutorService::shutdownNow);
        client.close();
    }

    private static String carryOut(InterProcessMutex mutex, String[] f) throws Exception {
        switch (f[1]) {
            case "try":
                return mutex.acquire(Long.parseLong(f[3]), TimeUnit.MILLISECONDS) ? "yes" : "no";
            case "lock":
                mutex.acquire();
                return "yes";
            case "unlock":
                mutex.release();
                return "done";
            default:
                return "error: unknown verb " + f[1];
        }
    }

    private static synchronized void answer(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
