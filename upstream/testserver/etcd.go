package testserver

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Etcd is one private etcd server, alone or a member of a cluster. A jump of the wall clock does
// not affect it, because its leases use the monotonic clock.
type Etcd struct {
	*process
	name                  string
	client, peer, metrics int // ports
	args                  []string
	cluster               []*Etcd // all members, including this one
	tls                   *tls.Config
	user, password        string
	admin                 *clientv3.Client
}

// StartEtcd starts etcd with args in addition to the arguments that keep it private, and returns
// when it is healthy. With --cert-file among args it speaks TLS, and Admin needs AdminTLS. The
// first start on a machine builds the server, which takes minutes.
func StartEtcd(t testing.TB, args ...string) *Etcd {
	t.Helper()
	return StartEtcdCluster(t, 1, args...)[0]
}

// StartEtcdCluster starts a cluster of n members.
func StartEtcdCluster(t testing.TB, n int, args ...string) []*Etcd {
	t.Helper()
	bin := etcdBinary(t)
	for range 5 {
		members := newEtcdCluster(t, n, args)
		for _, m := range members {
			m.run(bin)
		}
		if !slices.ContainsFunc(members, func(m *Etcd) bool { return !m.until(m.healthy) }) {
			return members
		}
		for _, m := range members { // a port may have been taken meanwhile
			t.Logf("etcd does not start:\n%s", m.log())
			m.Kill()
		}
	}
	t.Fatal("etcd does not start")
	return nil
}

func newEtcdCluster(t testing.TB, n int, args []string) []*Etcd {
	t.Helper()
	members := make([]*Etcd, n)
	for i := range members {
		m := &Etcd{process: newProcess(t, "etcd"), name: fmt.Sprint("m", i), args: args, cluster: members,
			client: ReservePort(t), peer: ReservePort(t), metrics: ReservePort(t)}
		m.closing = m.closeAdmin
		members[i] = m
	}
	return members
}

func (s *Etcd) run(bin string) {
	s.t.Helper()
	peers := make([]string, len(s.cluster))
	for i, m := range s.cluster {
		peers[i] = fmt.Sprintf("%s=http://127.0.0.1:%d", m.name, m.peer)
	}
	// A single member loses no election, however slow it is. Several members on a busy machine do.
	heartbeat, election := "20", "200"
	if len(s.cluster) > 1 {
		heartbeat, election = "100", "600"
	}
	peer := fmt.Sprintf("http://127.0.0.1:%d", s.peer)
	s.launch(exec.Command(bin, append([]string{"--name", s.name, "--data-dir",
		s.data(),
		"--listen-client-urls", s.url(), "--advertise-client-urls", s.url(),
		"--listen-peer-urls",
		peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", strings.Join(peers, ","),
		"--listen-metrics-urls", fmt.Sprintf("http://127.0.0.1:%d", s.metrics),
		"--heartbeat-interval", heartbeat, "--election-timeout", election,
		"--unsafe-no-fsync", "--log-level", "warn",
	}, s.args...)...))
}

// healthy reports whether this member states that it can write.
func (s *Etcd) healthy() bool {
	c := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d/health", s.metrics))
	if err != nil {
		return false
	}
	_ = r.Body.Close()
	return r.StatusCode == http.StatusOK
}

// Start starts the server again after Kill or Stop, on the same ports and with its data. If a
// majority of its cluster runs, Start waits until the member is healthy.
func (s *Etcd) Start() {
	s.t.Helper()
	s.run(etcdBinary(s.t))
	running := 0
	for _, m := range s.cluster {
		if m.cmd != nil {
			running++
		}
	}
	if running > len(s.cluster)/2 && !s.until(s.healthy) {
		s.t.Fatalf("etcd does not start again:\n%s", s.log())
	}
}

// Restart is Kill and Start.
func (s *Etcd) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Wipe deletes the data of a server that has ended. It then starts as a new, empty server.
func (s *Etcd) Wipe() {
	s.t.Helper()
	if err := os.RemoveAll(s.data()); err != nil {
		s.t.Fatal(err)
	}
}

// Backup copies the data of a server that has ended. The returned function replaces the server's
// data by the copy.
func (s *Etcd) Backup() (restore func()) {
	s.t.Helper()
	return s.backup(s.data())
}

func (s *Etcd) data() string { return filepath.Join(s.dir, "data") }

// Port returns the TCP port on 127.0.0.1 for clients.
func (s *Etcd) Port() int { return s.client }

// Addr returns the address for clients.
func (s *Etcd) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.client) }

func (s *Etcd) url() string {
	if slices.ContainsFunc(s.args, func(a string) bool { return strings.HasPrefix(a, "--cert-file") }) {
		return "https://" + s.Addr()
	}
	return "http://" + s.Addr()
}

// Ctl returns an etcdctl command for this server, which has not been started.
func (s *Etcd) Ctl(args ...string) *exec.Cmd {
	return exec.Command(etcdBinary(s.t), append([]string{"ctl", "--endpoints", s.Addr()}, args...)...)
}

// AdminTLS sets the TLS configuration of Admin, for a server that speaks TLS.
func (s *Etcd) AdminTLS(c *tls.Config) { s.tls = c }

// AdminUser sets the user of Admin, for a server that requires a login.
func (s *Etcd) AdminUser(user, password string) {
	s.closeAdmin()
	s.user, s.password = user, password
}

// Admin returns a client of this member for the test's own use. It is closed with the server.
func (s *Etcd) Admin() *clientv3.Client {
	s.t.Helper()
	if s.admin == nil {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.url()}, TLS: s.tls, Username: s.user,
			Password:    s.password,
			DialTimeout: startBound, Logger: zap.NewNop()})
		if err != nil {
			s.t.Fatal(err)
		}
		s.admin = c
	}
	return s.admin
}

func (s *Etcd) closeAdmin() {
	if s.admin != nil {
		_ = s.admin.Close()
		s.admin = nil
	}
}

// IsLeader reports whether this member leads its cluster.
func (s *Etcd) IsLeader() bool {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startBound)
	defer cancel()
	r, err := s.Admin().Status(ctx, s.url())
	if err != nil {
		s.t.Fatal(err)
	}
	return r.Leader == r.Header.MemberId
}

// etcdBinary is EtcdProgram for a test. It fails the test if the build fails.
func etcdBinary(t testing.TB) string {
	t.Helper()
	bin, err := EtcdProgram()
	if err != nil {
		t.Fatalf("build etcd (upstream/testserver/etcdserver): %v", err)
	}
	return bin
}

// EtcdProgram returns the path of the etcd server. It builds the server once on each machine for
// each version of the module in the directory etcdserver.
var EtcdProgram = sync.OnceValues(func() (string, error) {
	root, err := SourceRoot()
	if err != nil {
		return "", err
	}
	src := filepath.Join(root, "upstream", "testserver", "etcdserver")
	sum := sha256.New()
	for _, f := range []string{"go.mod", "go.sum", "main.go"} {
		b, err := os.ReadFile(filepath.Join(src, f))
		if err != nil {
			return "", err
		}
		_, _ = sum.Write(b)
	}
	_, _ = sum.Write([]byte(runtime.Version()))
	return onceAMachine("etcd-"+hex.EncodeToString(sum.Sum(nil)[:8]), func(bin string) error {
		build := exec.Command("go", "build", "-trimpath", "-o", bin, ".")
		build.Dir = src
		build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false")
		if out, err := build.CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
		return nil
	})
})

// SourceRoot returns the root directory of locksidecar's source, which is the working directory or
// above it.
func SourceRoot() (string, error) {
	wd, err := os.Getwd()
	for dir := wd; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "upstream", "testserver", "etcdserver")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = fmt.Errorf("%s is not in the source of locksidecar", wd)
		}
	}
	return "", err
}

// onceAMachine returns the path of a file in the user's cache. It calls build to make the file at
// another path if there is none yet.
func onceAMachine(name string, build func(path string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "locksidecar-test")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	file := filepath.Join(dir, name)
	unlock, err := lockFile(file + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := build(file + ".new"); err != nil {
		return "", err
	}
	return file, os.Rename(file+".new", file)
}

// lockFile prevents tests of several packages from building at the same time.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
