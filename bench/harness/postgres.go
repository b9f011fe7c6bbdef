package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Postgres is a private PostgreSQL server. Its user postgres may do everything in the database
// postgres, without a password, from this machine.
type Postgres struct {
	*Process
	Addr    string // "127.0.0.1:port"
	Version string
}

// PostgresProgram finds a program of the server, which Debian keeps out of PATH.
func PostgresProgram(name string) (string, error) {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
		return found[len(found)-1], nil
	}
	return exec.LookPath(name)
}

// StartPostgres makes a server in dir, which need not exist, and starts it on a free port of the
// loopback with these settings (name=value). If this process is root, the server runs as another
// user, because it refuses to run as root.
func StartPostgres(dir string, settings ...string) (*Postgres, error) {
	bin, err := PostgresProgram("postgres")
	if err != nil {
		return nil, err
	}
	initdb, err := PostgresProgram("initdb")
	if err != nil {
		return nil, err
	}
	said, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	// The directory of a benchmark may be closed to the server's user.
	if dir, err = os.MkdirTemp("", filepath.Base(dir)); err != nil {
		return nil, err
	}
	as, err := postgresUser()
	if err == nil && as != nil {
		err = os.Chown(dir, int(as.Uid), int(as.Gid))
	}
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	first := exec.Command(initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
		"--locale=C", "--no-sync")
	first.Dir, first.SysProcAttr = dir, &syscall.SysProcAttr{Credential: as}
	if b, err := first.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, b)
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	args := []string{"-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c",
		"unix_socket_directories=" + dir}
	for _, set := range settings {
		args = append(args, "-c", set)
	}
	p := &Process{cmd: exec.Command(bin, args...)}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, &p.said, &p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if err := p.start(); err != nil {
		return nil, err
	}
	fields := strings.Fields(string(said))
	s := &Postgres{p, addr, fields[min(2, len(fields)-1)]}
	return s, p.await(func() error {
		if !strings.Contains(p.Said(), "ready to accept connections") {
			return errors.New("it does not accept connections")
		}
		return nil
	})
}

// Stop ends the server and removes its files.
func (s *Postgres) Stop() error {
	err := s.Process.Stop()
	return errors.Join(err, os.RemoveAll(s.cmd.Dir))
}

// postgresUser is the user postgres, or nobody, if this process is root.
func postgresUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err1, err2)
}
