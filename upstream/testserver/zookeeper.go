package testserver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// zookeeperJars has the files of the server in Debian's packages. The server's manifest names its
// dependencies. A server whose log is read needs slf4j's simple binding, too.
const zookeeperJars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"

const zookeeperMain = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

var zookeeperArgs = []string{"-Xmx96m", "-Xshare:auto", "-XX:+UseSerialGC",
	"-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", zookeeperJars,
	"-Dzookeeper.admin.enableServer=false",
	"-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.forceSync=no",
	"-Dznode.container.checkIntervalMs=500", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"}

// zookeeperClasses has the path of the server's classes as Java has loaded them, with which a
// start takes half the time. The path is empty if Java does not write that file.
var zookeeperClasses struct {
	once sync.Once
	path string
}

// loadedClasses returns the path in zookeeperClasses. It makes the file once on each machine for
// each version of Java and of the server, by a server that ends cleanly.
func loadedClasses(t testing.TB, java string) string {
	zookeeperClasses.once.Do(func() {
		sum := sha256.New()
		for _, f := range append(strings.Split(zookeeperJars, ":"), java) {
			info, err := os.Stat(f)
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(sum, f, info.Size(), info.ModTime().UnixNano())
		}
		name := "zookeeper-" + hex.EncodeToString(sum.Sum(nil)[:8]) + ".jsa"
		zookeeperClasses.path, _ = onceAMachine(name, func(path string) error {
			z := &ZooKeeper{process: newProcess(t, "zk"), client: ReservePort(t)}
			args := append(slices.Clone(zookeeperArgs), "-XX:ArchiveClassesAtExit="+path)
			z.launch(exec.Command(java, append(args, zookeeperMain, z.writeConfig())...))
			if !z.until(z.Serves) {
				return errors.New("zookeeper does not start")
			}
			z.Stop()
			return nil
		})
	})
	return zookeeperClasses.path
}

// ZooKeeperTick is the tickTime of the servers. The shortest session is twice as long.
const ZooKeeperTick = 200 * time.Millisecond

// ZooKeeper is one private ZooKeeper server, alone or a member of an ensemble. A jump of the wall
// clock does not affect it, because its sessions use the monotonic clock.
type ZooKeeper struct {
	*process
	id                     int
	client, peer, election int // ports
	settings               []string
	ensemble               []*ZooKeeper // all members, including this one; empty for a single server
	admin                  *zk.Conn
	events                 <-chan zk.Event // closed when admin's goroutines have ended
	owner                  *owner          // of a server that is used again
}

// StartZooKeeper starts ZooKeeper with settings (lines of zoo.cfg, or -D… for Java) in addition to
// the settings that keep it private, and returns when it serves. The test fails if ZooKeeper is
// missing.
func StartZooKeeper(t testing.TB, settings ...string) *ZooKeeper {
	t.Helper()
	if reuse.on {
		return reusedZooKeeper(t, settings)
	}
	return startZooKeepers(t, 1, settings)[0]
}

// StartZooKeeperEnsemble starts an ensemble of n members.
func StartZooKeeperEnsemble(t testing.TB, n int, settings ...string) []*ZooKeeper {
	t.Helper()
	return startZooKeepers(t, n, settings)
}

func startZooKeepers(t testing.TB, n int, settings []string) []*ZooKeeper {
	t.Helper()
	for range 5 {
		all := make([]*ZooKeeper, n)
		for i := range all {
			all[i] = &ZooKeeper{process: newProcess(t, "zk"), id: i + 1, client: ReservePort(t),
				peer: ReservePort(t), election: ReservePort(t), settings: settings}
			all[i].closing = all[i].closeAdmin
		}
		ok := true
		for _, z := range all {
			if n > 1 {
				z.ensemble = all
			}
			z.launchServer()
		}
		for _, z := range all {
			ok = ok && z.until(z.Serves)
		}
		if ok {
			return all
		}
		for _, z := range all { // a port may have been taken meanwhile
			t.Logf("zookeeper does not start:\n%s", z.log())
			z.Kill()
		}
	}
	t.Fatal("zookeeper does not start")
	return nil
}

// Start starts the server again after Kill or Stop, on the same port and with its data on disk. It
// returns when the server serves. Launch does not wait, because a member without a quorum never
// serves.
func (z *ZooKeeper) Start() {
	z.t.Helper()
	z.Launch()
	if !z.until(z.Serves) {
		z.t.Fatalf("zookeeper does not start:\n%s", z.log())
	}
}

// Launch is Start without waiting.
func (z *ZooKeeper) Launch() {
	z.t.Helper()
	z.launchServer()
}

func (z *ZooKeeper) launchServer() {
	z.t.Helper()
	java := find(z.t, "java", "default-jre-headless")
	if _, err := os.Stat(strings.Split(zookeeperJars, ":")[0]); err != nil {
		z.t.Fatal("zookeeper is needed for this test and is missing " +
			"(Debian, Ubuntu: apt-get install zookeeper libslf4j-java)")
	}
	args := slices.Clone(zookeeperArgs)
	if classes := loadedClasses(z.t, java); classes != "" {
		args = append(args, "-XX:SharedArchiveFile="+classes)
	}
	for _, s := range z.settings {
		if strings.HasPrefix(s, "-D") {
			args = append(args, s)
		}
	}
	z.launch(exec.Command(java, append(args, zookeeperMain, z.writeConfig())...))
}

func (z *ZooKeeper) writeConfig() string {
	z.t.Helper()
	data := z.data()
	var b strings.Builder
	fmt.Fprintf(&b, "dataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\ntickTime=%d\nmaxSessionTimeout=60000\n"+
		"4lw.commands.whitelist=*\nmaxClientCnxns=0\nadmin.enableServer=false\n", data, z.client,
		ZooKeeperTick.Milliseconds())
	if z.ensemble != nil {
		fmt.Fprintf(&b, "initLimit=50\nsyncLimit=10\n")
		for _, m := range z.ensemble {
			fmt.Fprintf(&b, "server.%d=127.0.0.1:%d:%d\n", m.id, m.peer, m.election)
		}
	}
	for _, s := range z.settings {
		if !strings.HasPrefix(s, "-D") {
			b.WriteString(s + "\n")
		}
	}
	path := filepath.Join(z.dir, "zoo.cfg")
	for _, err := range []error{os.MkdirAll(data, 0o700),
		os.WriteFile(path, []byte(b.String()), 0o600),
		os.WriteFile(filepath.Join(data, "myid"), []byte(strconv.Itoa(z.id)), 0o600)} {
		if err != nil {
			z.t.Fatal(err)
		}
	}
	return path
}

// Say sends one of the four-letter words and returns the answer, or "" without one.
func (z *ZooKeeper) Say(word string) string {
	c, err := net.DialTimeout("tcp", z.Addr(), time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte(word))
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String()
		}
	}
}

// Serves reports whether the server has a quorum, or needs none.
func (z *ZooKeeper) Serves() bool { return strings.Contains(z.Say("srvr"), "Mode: ") }

// Leads reports whether the server is its ensemble's leader.
func (z *ZooKeeper) Leads() bool { return strings.Contains(z.Say("srvr"), "Mode: leader") }

// Addr returns the TCP address for clients.
func (z *ZooKeeper) Addr() string { return "127.0.0.1:" + strconv.Itoa(z.client) }

// URL returns the zookeeper:// URL of this server alone.
func (z *ZooKeeper) URL() string { return "zookeeper://" + z.Addr() }

// Wipe deletes the data of a server that has ended. It then starts as a new, empty server.
func (z *ZooKeeper) Wipe() {
	z.t.Helper()
	if err := os.RemoveAll(z.data()); err != nil {
		z.t.Fatal(err)
	}
}

// Backup copies the data of a server that has ended. The returned function replaces the server's
// data by the copy.
func (z *ZooKeeper) Backup() (restore func()) {
	z.t.Helper()
	return z.backup(z.data())
}

func (z *ZooKeeper) data() string { return filepath.Join(z.dir, "data") }

// Restart is Kill and Start. The data on disk survives, including sessions.
func (z *ZooKeeper) Restart() {
	z.t.Helper()
	z.Kill()
	z.Start()
}

// quiet is a logger that discards all messages.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// Client returns a separate session for the test, with ZooKeeper's Go client.
func (z *ZooKeeper) Client(t testing.TB) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect([]string{z.Addr()}, 30*time.Second, zk.WithLogger(quiet{}),
		zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		for range events {
		}
	})
	return c
}

// Admin returns a session for the test's own use. It is closed with the server.
func (z *ZooKeeper) Admin() *zk.Conn {
	z.t.Helper()
	if z.admin == nil {
		c, events, err := zk.Connect([]string{z.Addr()}, 30*time.Second, zk.WithLogger(quiet{}),
			zk.WithLogInfo(false))
		if err != nil {
			z.t.Fatal(err)
		}
		z.admin, z.events = c, events
	}
	return z.admin
}

func (z *ZooKeeper) closeAdmin() {
	if z.admin == nil {
		return
	}
	z.admin.Close()
	for range z.events {
	}
	z.admin = nil
}
