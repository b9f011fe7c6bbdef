package harness

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// zooKeeperJars are the paths at which Debian's packages install the server and its logger.
const zooKeeperJars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"

// ZooKeeper is a private ZooKeeper of one server. As in ZooKeeper's default settings, it waits for
// the disk before it answers.
type ZooKeeper struct {
	*Process
	Addr    string // "127.0.0.1:port"
	Version string
}

// StartZooKeeper starts a server on a free port of the loopback interface. Its data is in dir.
func StartZooKeeper(dir string) (*ZooKeeper, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	data := filepath.Join(dir, "zookeeper")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(data, "zoo.cfg")
	lines := fmt.Sprintf("dataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n", data, port)
	if err := os.WriteFile(config, []byte(lines), 0o600); err != nil {
		return nil, err
	}
	p, err := StartProcess("java", "-Xmx1g", "-cp", zooKeeperJars,
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dzookeeper.jmx.log4j.disable=true", "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
	if err != nil {
		return nil, err
	}
	z := &ZooKeeper{Process: p, Addr: addr}
	return z, p.await(func() error {
		said := z.srvr()
		if said["Mode"] == "" {
			return fmt.Errorf("it says %v of itself", said)
		}
		z.Version, _, _ = strings.Cut(said["Zookeeper version"], "-")
		return nil
	})
}

// srvr returns what the server reports about itself, by name. It returns nil if the server does not
// answer.
func (z *ZooKeeper) srvr() map[string]string {
	c, err := net.DialTimeout("tcp", z.Addr, time.Second)
	if err != nil {
		return nil
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	io.WriteString(c, "srvr")
	b, _ := io.ReadAll(c)
	said := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ": "); ok {
			said[k] = strings.TrimSpace(v)
		}
	}
	return said
}
