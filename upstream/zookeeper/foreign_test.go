package zookeeper_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// curator is a process with Curator's InterProcessMutex.
type curator struct {
	testing.TB
	in    io.Writer
	mu    sync.Mutex
	last  int
	waits map[string]chan string // guarded by mu
}

// buildCurator builds testdata/curator with Maven, from its local repository if that is complete,
// and returns the program. The program stays in the user's cache until its sources change.
var buildCurator = sync.OnceValues(func() (jar string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, f := range []string{"pom.xml", "src/main/java/Locker.java"} {
		b, err := os.ReadFile(filepath.Join("testdata/curator", f))
		if err != nil {
			return "", err
		}
		sum.Write(b)
	}
	dir := filepath.Join(cache, "locksidecar-test", "curator-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	jar = filepath.Join(dir, "curator-1.jar")
	if _, err := os.Stat(jar); err == nil {
		return jar, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", err
	}
	out, err := os.MkdirTemp(filepath.Dir(dir), "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(out)
	if err := runMaven(out); err != nil {
		return "", err
	}
	// Another process may have been faster.
	if err := os.Rename(out, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return jar, nil
})

func runMaven(out string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return errors.New("mvn is needed for this test and is not on PATH (Debian, Ubuntu: apt-get install maven default-jdk-headless)")
	}
	var said []byte
	for _, offline := range []string{"--offline", "--batch-mode"} {
		cmd := exec.Command(mvn, "-q", "-B", offline, "package", "-Dout="+out)
		cmd.Dir = "testdata/curator"
		if said, err = cmd.CombinedOutput(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("build testdata/curator: %w\n%s", err, said)
}

func startCurator(t testing.TB, srv *testserver.ZooKeeper, session time.Duration) *curator {
	t.Helper()
	jar, err := buildCurator()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", jar,
		srv.Addr(), fmt.Sprint(session.Milliseconds()))
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &curator{TB: t, in: in, waits: map[string]chan string{"0": make(chan string, 1)}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			id, answer, _ := strings.Cut(lines.Text(), " ")
			c.mu.Lock()
			w := c.waits[id]
			c.mu.Unlock()
			if w != nil {
				w <- answer
			}
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		<-done
		_ = cmd.Wait()
	})
	c.want(c.waits["0"], "ready")
	return c
}

// ask sends a command. The answer comes on the channel.
func (c *curator) ask(what string) chan string {
	c.Helper()
	c.mu.Lock()
	c.last++
	id, w := fmt.Sprint(c.last), make(chan string, 1)
	c.waits[id] = w
	c.mu.Unlock()
	if _, err := io.WriteString(c.in, id+" "+what+"\n"); err != nil {
		c.Fatal(err)
	}
	return w
}

func (c *curator) want(w chan string, answer string) {
	c.Helper()
	select {
	case got := <-w:
		if got != answer {
			c.Fatalf("Curator says %q, not %q", got, answer)
		}
	case <-time.After(bound):
		c.Fatalf("Curator does not say %q", answer)
	}
}

func (c *curator) quiet(w chan string) {
	c.Helper()
	select {
	case got := <-w:
		c.Fatalf("Curator says %q already", got)
	default:
	}
}

func TestCuratorExcludesUsAndWeExcludeIt(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	cur := startCurator(t, srv, 10*time.Second)
	p, q := newPeer(t, srv.URL()+"/locks"), newPeer(t, srv.URL()+"/locks")

	// Curator has the lock first. Tries are busy, and joins get their turns in order.
	cur.want(cur.ask("try /locks/a 1000"), "yes")
	for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
		p.want(p.do(cache.OpTry, mode, "a", p.token()), cache.Busy)
	}
	if r := p.want(p.do(cache.OpPeek, 0, "a", 0), cache.Busy); r.Mode != cache.Exclusive {
		t.Errorf("it is held %v", r.Mode)
	}
	w, r := p.token(), q.token()
	p.want(p.join("a", w), cache.Queued)
	q.want(q.do(cache.OpJoin, cache.Shared, "a", r), cache.Queued)
	cur.want(cur.ask("unlock /locks/a"), "done")
	p.hinted(cache.HintAvailable, "a")
	first := p.want(p.join("a", w), cache.Granted)
	if !first.Contended {
		t.Error("the reader's waiting is not noticed")
	}

	// We have the lock first, as a writer or a reader. Curator gives up, or waits until we release.
	cur.want(cur.ask("try /locks/a 50"), "no")
	waits := cur.ask("lock /locks/a")
	p.eventually("Curator waits", func() bool { return len(children(t, srv, "/locks/a")) == 3 })
	p.want(p.release("a", w), cache.Done)
	if r := q.want(q.do(cache.OpJoin, cache.Shared, "a", r), cache.Granted); r.Base <= first.Base ||
		!r.Contended {
		t.Errorf("base %d after %d, contended %v", r.Base, first.Base, r.Contended)
	}
	cur.quiet(waits)
	q.want(q.release("a", r), cache.Done)
	cur.want(waits, "yes")
	p.want(p.try("a", p.token()), cache.Busy)
	cur.want(cur.ask("unlock /locks/a"), "done")
	w, _ = p.take("a", cache.Exclusive)
	waits = cur.ask("lock /locks/a")
	p.hinted(cache.HintContended, "a")
	if r := p.want(p.renew("a", w), cache.Done); !r.Contended {
		t.Error("Curator's waiting is not noticed")
	}
	p.want(p.release("a", w), cache.Done)
	cur.want(waits, "yes")
}

func TestCuratorThatCrashesFreesItsLockWithItsSession(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"/locks")
	cur := startCurator(t, srv, 2*time.Second)
	cur.want(cur.ask("lock /locks/a"), "yes")
	w := p.token()
	p.want(p.join("a", w), cache.Queued)
	cur.ask("drop")
	p.hinted(cache.HintAvailable, "a")
	p.want(p.join("a", w), cache.Granted)
}

func TestCuratorAndWeNeverHoldTogether(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	cur := startCurator(t, srv, 30*time.Second)
	p, q := newPeer(t, srv.URL()+"/locks?session=30s&timeout=10s"),
		newPeer(t, srv.URL()+"/locks?session=30s&timeout=10s")
	var inside atomic.Int32
	enter := func(who string) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%s is let in beside %d", who, n-1)
		}
		inside.Add(-1)
	}
	const turns = 25
	var wg sync.WaitGroup
	wg.Go(func() {
		for range turns {
			if <-cur.ask("lock /locks/a") != "yes" {
				t.Error("Curator does not get it")
				return
			}
			enter("Curator")
			<-cur.ask("unlock /locks/a")
		}
	})
	for kind, x := range map[cache.OpKind]*peer{cache.OpJoin: p, cache.OpTry: q} {
		wg.Go(func() {
			for range turns {
				tok := x.token()
				for end := time.Now().Add(bound); x.do(kind, cache.Exclusive, "a",
					tok).Status != cache.Granted; {
					if time.Now().After(end) {
						t.Error("we do not get it")
						return
					}
				}
				enter("we")
				if r := x.release("a", tok); r.Status != cache.Done {
					t.Errorf("release is %v (%v)", r.Status, r.Err)
				}
			}
		})
	}
	wg.Wait()
}

func children(t testing.TB, srv *testserver.ZooKeeper, path string) []string {
	t.Helper()
	names, _, err := srv.Admin().Children(path)
	if err != nil && err != zk.ErrNoNode {
		t.Fatal(err)
	}
	return names
}

func TestTheGoClientsLock(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"/locks")
	l := zk.NewLock(srv.Client(t), "/locks/a", zk.WorldACL(zk.PermAll))
	if err := l.Lock(); err != nil {
		t.Fatal(err)
	}
	p.want(p.try("a", p.token()), cache.Busy)
	w := p.token()
	p.want(p.join("a", w), cache.Queued)
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	p.hinted(cache.HintAvailable, "a")
	p.want(p.join("a", w), cache.Granted)
	got := make(chan error, 1)
	go func() { got <- l.Lock() }()
	p.hinted(cache.HintContended, "a")
	select {
	case err := <-got:
		t.Fatalf("it has the lock beside us (%v)", err)
	default:
	}
	p.want(p.release("a", w), cache.Done)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	p.want(p.try("a", p.token()), cache.Busy)
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	p.take("a", cache.Exclusive)
}

func TestForeignNodesOfAllKinds(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"/locks")
	c := srv.Admin()
	make1 := func(path, data string, flags int32) string {
		t.Helper()
		path, err := c.Create(path, []byte(data), flags, zk.WorldACL(zk.PermAll))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	// A node without a number at its end holds nothing, as for Curator.
	make1("/locks/a", "somebody's", 0)
	make1("/locks/a/config", "", 0)
	make1("/locks/a/lock-", "", 0)
	tok, _ := p.take("a", cache.Exclusive)
	p.want(p.release("a", tok), cache.Done)
	// Any node with a number holds the lock, whatever its data is, and permanently if the node is
	// permanent.
	for i, name := range []string{"lock-", "_c_0a0a0a0a-0000-4000-8000-000000000000-lock-",
		"0123456789abcdef__lock__", "_c_x-__WRIT__"} {
		key := fmt.Sprint("b", i)
		make1("/locks/"+key, "", 0)
		path := make1("/locks/"+key+"/"+name, "locksidecar shared x", zk.FlagSequence)
		p.want(p.try(key, p.token()), cache.Busy)
		p.want(p.do(cache.OpTry, cache.Shared, key, p.token()), cache.Busy)
		if r := p.want(p.do(cache.OpPeek, 0, key, 0), cache.Busy); r.Mode != cache.Exclusive {
			t.Errorf("%s holds it %v", name, r.Mode)
		}
		s := p.token()
		p.want(p.do(cache.OpJoin, cache.Shared, key, s), cache.Queued)
		if err := c.Delete(path, -1); err != nil {
			t.Fatal(err)
		}
		p.hinted(cache.HintAvailable, key)
		p.want(p.do(cache.OpJoin, cache.Shared, key, s), cache.Granted)
	}
}
