package harness

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// MariaDB is a private MariaDB server with an empty database named locks. Its user root may do
// everything from this machine, without a password.
type MariaDB struct {
	*Process
	Addr    string // "127.0.0.1:port"
	Version string
}

// StartMariaDB creates a server in dir, which need not exist, and starts it on a free port of the
// loopback interface. args are appended to the arguments that keep the server private. It takes
// some seconds.
func StartMariaDB(dir string, args ...string) (*MariaDB, error) {
	bin, err := exec.LookPath("mariadbd")
	if err != nil {
		bin = "/usr/sbin/mariadbd" // Debian's path, which is not always in PATH
	}
	said, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask MariaDB for its version: %w", err)
	}
	_, version, _ := strings.Cut(string(said), "Ver ")
	version, _, _ = strings.Cut(version, " ")
	data, first := filepath.Join(dir, "data"), filepath.Join(dir, "first.sql")
	common := []string{"--no-defaults", "--datadir=" + data}
	if os.Getuid() == 0 {
		common = append(common, "--user=root")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(first, []byte("CREATE DATABASE IF NOT EXISTS locks;\n"),
		0o600); err != nil {
		return nil, err
	}
	if b, err := exec.Command("mariadb-install-db",
		append(common[:len(common):len(common)], "--auth-root-authentication-method=normal",
			"--skip-test-db")...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mariadb-install-db: %w\n%s", err, b)
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	p, err := StartProcess(bin, append(append(common, "--port="+port, "--bind-address=127.0.0.1",
		"--skip-name-resolve",
		"--socket="+filepath.Join(dir, "s"), "--pid-file="+filepath.Join(dir, "pid"),
		"--init-file="+first, "--innodb-fast-shutdown=2"), args...)...)
	if err != nil {
		return nil, err
	}
	return &MariaDB{p, addr, version}, p.await(func() error { return greeted(addr) })
}

// greeted returns nil if the server at addr has sent its greeting.
func greeted(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}
