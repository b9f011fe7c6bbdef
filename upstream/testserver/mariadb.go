package testserver

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
)

// MariaDB is one private MariaDB server with an empty database, locks. Its user root has all
// rights, without a password, from this machine. The data survives Kill and Start.
type MariaDB struct {
	*process
	port  int
	args  []string
	admin *sql.DB
}

// StartMariaDB starts mariadbd from PATH with args in addition to the arguments that keep it
// private and small, and returns when it answers. The test fails if the program is missing.
func StartMariaDB(t testing.TB, args ...string) *MariaDB {
	t.Helper()
	s := &MariaDB{process: newProcess(t, "mariadb"), args: args}
	s.closing = s.closeAdmin
	image, err := mariadbImage()
	if err != nil {
		t.Fatal(err)
	}
	if err := image.unpack(filepath.Join(s.dir, "data")); err != nil {
		t.Fatal(err)
	}
	s.Start()
	s.Exec("CREATE DATABASE locks")
	if IsMySQL() { // MySQL creates only root@localhost
		s.Exec("CREATE USER root@'127.0.0.1';GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION")
	}
	return s
}

// Start starts the server again after Kill or Stop, on the same port.
func (s *MariaDB) Start() {
	s.t.Helper()
	bin := os.Getenv(mysqldEnv)
	if bin == "" {
		bin = find(s.t, "mariadbd", "mariadb-server")
	}
	s.start(filepath.Base(bin), &s.port, func() *exec.Cmd {
		cmd := exec.Command(bin, append(mariadbArgs(filepath.Join(s.dir, "data")),
			append([]string{"--port=" + strconv.Itoa(s.port), "--bind-address=127.0.0.1",
				"--skip-networking=0",
				"--socket=" + s.Socket(), "--pid-file=" + filepath.Join(s.dir, "pid"), "--skip-name-resolve",
				"--innodb-flush-log-at-trx-commit=1",
				"--innodb-fast-shutdown=2"}, s.args...)...)...)
		cmd.Env = append(os.Environ(), s.clockEnv()...)
		return cmd
	}, s.answers)
}

func (s *MariaDB) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return s.Admin().PingContext(ctx) == nil
}

// mariadbArgs returns the arguments that the server and the program that makes its files have in
// common.
func mariadbArgs(data string) []string {
	if IsMySQL() {
		return mysqldArgs(data)
	}
	// When a server starts, it removes all temporary tables from its tmpdir, even the tables of other
	// servers.
	args := []string{"--no-defaults", "--datadir=" + data, "--tmpdir=" + filepath.Dir(data),
		"--innodb-log-file-size=16M", "--innodb-buffer-pool-size=24M",
		"--innodb-data-file-path=ibdata1:4M:autoextend",
		"--aria-pagecache-buffer-size=1M", "--key-buffer-size=1M",
		"--performance-schema=0"}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}

func (s *MariaDB) closeAdmin() {
	if s.admin != nil {
		_ = s.admin.Close()
		s.admin = nil
	}
}

// Restart is Kill and Start. Committed data survives.
func (s *MariaDB) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Port returns the TCP port on 127.0.0.1.
func (s *MariaDB) Port() int { return s.port }

// Addr returns the TCP address.
func (s *MariaDB) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Socket returns the path of the Unix socket.
func (s *MariaDB) Socket() string { return filepath.Join(s.dir, "s") }

// URL returns the mysql:// URL of the database locks, with the user root.
func (s *MariaDB) URL() string { return "mysql://root@" + s.Addr() + "/locks" }

// Admin returns a database handle for the test's own use, as root on the Unix socket. It is closed
// with the server.
func (s *MariaDB) Admin() *sql.DB {
	if s.admin == nil {
		cfg := gomysql.NewConfig()
		cfg.Net, cfg.Addr, cfg.User, cfg.MultiStatements = "unix", s.Socket(), "root", true
		cfg.Logger = &gomysql.NopLogger{}
		c, err := gomysql.NewConnector(cfg)
		if err != nil {
			s.t.Fatal(err)
		}
		s.admin = sql.OpenDB(c)
		s.admin.SetMaxIdleConns(1)
	}
	return s.admin
}

// Exec carries out statements on the Admin connection and fails the test if one fails.
func (s *MariaDB) Exec(query string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startBound)
	defer cancel()
	if _, err := s.Admin().ExecContext(ctx, query); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
}

// Value returns the single value of a query on the Admin connection as text, or "" without a row.
func (s *MariaDB) Value(query string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startBound)
	defer cancel()
	var v sql.NullString
	if err := s.Admin().QueryRowContext(ctx, query).Scan(&v); err != nil && err != sql.ErrNoRows {
		s.t.Fatalf("%s: %v", query, err)
	}
	return v.String
}

// ReadOnly makes the server read-only, like a replica, or writable again. This affects users
// without SUPER and READ ONLY ADMIN, so not root.
func (s *MariaDB) ReadOnly(on bool) {
	s.t.Helper()
	s.Exec(fmt.Sprintf("SET GLOBAL read_only = %t", on))
}

// JumpClock sets the server's wall clock to the true time plus d. The server has to be started with
// StartMariaDBWithClock.
func (s *MariaDB) JumpClock(d time.Duration) {
	s.t.Helper()
	if !s.faked() {
		s.t.Fatal("JumpClock needs StartMariaDBWithClock")
	}
	s.setClock(d)
}

// StartMariaDBWithClock is StartMariaDB with a clock that JumpClock can set, by libfaketime.
func StartMariaDBWithClock(t testing.TB, args ...string) *MariaDB {
	t.Helper()
	if IsMySQL() {
		t.Skip("MySQL does not start under libfaketime")
	}
	return StartMariaDB(t, append([]string{fakeClock}, args...)...)
}

// fakeClock is an argument that the server ignores. It marks a server with its own clock.
const fakeClock = "--loose-locksidecar-fake-clock"

func (s *MariaDB) faked() bool { return len(s.args) > 0 && s.args[0] == fakeClock }

func (s *MariaDB) clockEnv() []string {
	if !s.faked() {
		return nil
	}
	return s.fakeClockEnv("")
}

// image is a copy of a data directory without blocks of zeros.
type image map[string]*imageFile

type imageFile struct {
	dir    bool
	size   int64
	blocks map[int64][]byte // by offset
}

const imageBlock = 16 << 10

// mariadbImage makes the files of a fresh server once in each process. That takes a second or more,
// and a copy much less.
var mariadbImage = sync.OnceValues(func() (image, error) {
	dir, err := os.MkdirTemp("", "mariadb-image")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if IsMySQL() {
		return mysqlImage(dir)
	}
	bin, err := exec.LookPath("mariadb-install-db")
	if err != nil {
		return nil, fmt.Errorf("mariadb-install-db is needed for this test and is not on PATH " +
			"(Debian, Ubuntu: apt-get install mariadb-server)")
	}
	data := filepath.Join(dir, "data")
	args := append(mariadbArgs(data), "--auth-root-authentication-method=normal", "--skip-test-db")
	if out, err := exec.Command(bin, args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mariadb-install-db: %w\n%s", err, out)
	}
	return packImage(data)
})

func packImage(data string) (image, error) {
	zeros := make([]byte, imageBlock)
	im := image{}
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		f := &imageFile{dir: d.IsDir(), blocks: map[int64][]byte{}}
		im[name] = f
		if f.dir {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f.size = int64(len(b))
		for at := int64(0); at < f.size; at += imageBlock {
			block := b[at:min(at+imageBlock, f.size)]
			if !bytes.Equal(block, zeros[:len(block)]) {
				f.blocks[at] = bytes.Clone(block)
			}
		}
		return nil
	})
	return im, err
}

func (im image) unpack(data string) error {
	for name, f := range im {
		if f.dir {
			if err := os.MkdirAll(filepath.Join(data, name), 0o700); err != nil {
				return err
			}
		}
	}
	for name, f := range im {
		if f.dir {
			continue
		}
		if err := f.write(filepath.Join(data, name)); err != nil {
			return err
		}
	}
	return nil
}

func (f *imageFile) write(path string) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Truncate(f.size); err != nil {
		return err
	}
	for at, b := range f.blocks {
		if _, err := out.WriteAt(b, at); err != nil {
			return err
		}
	}
	return out.Close()
}
