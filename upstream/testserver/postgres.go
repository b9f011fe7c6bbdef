package testserver

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Postgres is one private PostgreSQL server with an empty database, locks. Its user postgres has
// all rights, without a password, from this machine. The data survives Kill and Start. If the test
// runs as root, the server runs as the user postgres or nobody, because it refuses to run as root.
type Postgres struct {
	*process
	port    int
	args    []string
	faked   bool
	orderly bool  // Stop ends the server, as opposed to Kill
	killed  []int // the processes that the last Kill has ended, besides the server's first one
	made    bool  // the database locks exists
	admin   *pgconn.PgConn
}

// StartPostgres starts a server with these settings (name=value), and returns when it answers.
func StartPostgres(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	return startPostgres(t, false, settings)
}

// StartPostgresWithClock is StartPostgres with a clock that JumpClock can set, by libfaketime.
func StartPostgresWithClock(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	return startPostgres(t, true, settings)
}

func startPostgres(t testing.TB, faked bool, settings []string) *Postgres {
	t.Helper()
	s := &Postgres{process: newProcess(t, "postgres"), faked: faked}
	s.closing = s.beforeEnd
	for _, set := range settings {
		s.args = append(s.args, "-c", set)
	}
	image, err := postgresImage()
	if err == nil {
		err = image.unpack(s.data())
	}
	if err == nil {
		err = own(s.dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	s.Exec("CREATE DATABASE locks")
	s.made = true
	s.closeAdmin() // the next connection is to the database locks
	return s
}

func (s *Postgres) data() string { return filepath.Join(s.dir, "data") }

// Start starts the server again after Kill or Stop, on the same port.
func (s *Postgres) Start() {
	s.t.Helper()
	bin, err := postgresProgram("postgres")
	if err != nil {
		s.t.Fatal(err)
	}
	s.orderly = false
	s.start("postgres", &s.port, func() *exec.Cmd {
		args := append([]string{"-D", s.data(), "-p", strconv.Itoa(s.port), "-c",
			"listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=" + s.dir, "-c", "shared_buffers=16MB", "-c", "max_wal_size=64MB",
			"-c", "min_wal_size=2MB"}, s.args...)
		cmd := exec.Command(bin, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: postgresUser()}
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		if s.faked {
			cmd.Env = append(cmd.Env, s.fakeClockEnv("")...)
		}
		return cmd
	}, s.answers)
}

func (s *Postgres) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	database := "postgres"
	if s.made {
		database = "locks"
	}
	conn, err := s.connect(ctx, database)
	if err == nil {
		s.admin = conn
	}
	return err == nil
}

func (s *Postgres) connect(ctx context.Context, database string) (*pgconn.PgConn, error) {
	return pgconn.Connect(ctx, fmt.Sprintf("host=%s port=%d user=postgres dbname=%s sslmode=disable",
		s.dir, s.port, database))
}

// beforeEnd ends the server's other processes if the server is to be killed, because they would
// outlive it.
func (s *Postgres) beforeEnd() {
	s.closeAdmin()
	if s.cmd == nil || s.orderly {
		return
	}
	s.killed = nil
	if s.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return
	}
	for end := time.Now().Add(startBound); !s.stopped() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	s.killed = s.children()
	for _, pid := range s.killed {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Kill ends all processes at once, as a crash does, and waits for their end.
func (s *Postgres) Kill() {
	s.process.Kill()
	for end := time.Now().Add(startBound); slices.ContainsFunc(s.killed,
		func(pid int) bool { return state(pid) != 'Z' }); {
		if time.Now().After(end) {
			s.t.Fatal("a process of the server does not end")
		}
		time.Sleep(time.Millisecond)
	}
}

// state returns the letter of a process's state, or Z if it has ended.
func state(pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(b), ") ")
	if err != nil || !ok || rest == "" || rest[0] == 'X' {
		return 'Z'
	}
	return rest[0]
}

// Stop ends the server in the orderly way, without waiting for its clients.
func (s *Postgres) Stop() {
	s.orderly = true
	s.end(syscall.SIGINT)
}

// UseUpTransactionIDs makes a server that Stop has ended warn in each transaction, after Start,
// that its transaction ids will soon be used up. The server's own maintenance ends that within
// seconds.
func (s *Postgres) UseUpTransactionIDs() {
	s.t.Helper()
	bin, err := postgresProgram("pg_resetwal")
	if err != nil {
		s.t.Fatal(err)
	}
	const next, segment = 2_110_000_000, 1 << 20 // ids; the server warns 40 million before 2^31
	cmd := exec.Command(bin, "-x", strconv.Itoa(next), "-D", s.data())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: postgresUser()}
	cmd.Dir = s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("pg_resetwal: %v\n%s", err, out)
	}
	file := filepath.Join(s.data(), "pg_xact", fmt.Sprintf("%04X", next/segment))
	if err := os.WriteFile(file, make([]byte, segment/4), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.Own(file)
}

// Log returns the server's log.
func (s *Postgres) Log() string { return s.log() }

// Restart is Kill and Start. The server recovers committed data.
func (s *Postgres) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// children returns the server's child processes. There is one for each connection, and some of its
// own.
func (s *Postgres) children() (pids []int) {
	list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.PID(), s.PID()))
	for f := range bytes.FieldsSeq(list) {
		if pid, err := strconv.Atoi(string(f)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Pause stops all processes of the server with SIGSTOP. It returns when they have stopped.
func (s *Postgres) Pause() {
	s.t.Helper()
	s.process.Pause() // no process is added from here on
	for _, pid := range s.children() {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	for end := time.Now().Add(startBound); !s.allStopped(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatal("the server does not stop")
		}
	}
}

func (s *Postgres) allStopped() bool {
	return !slices.ContainsFunc(s.children(), func(pid int) bool {
		return !strings.ContainsRune("TtZ", rune(state(pid)))
	})
}

// Resume continues all processes after Pause.
func (s *Postgres) Resume() {
	s.t.Helper()
	for _, pid := range s.children() {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	s.process.Resume()
}

// Addr returns the TCP address.
func (s *Postgres) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// URL returns the postgres:// URL of the database locks, with the user postgres.
func (s *Postgres) URL() string { return "postgres://postgres@" + s.Addr() + "/locks" }

// Own gives a file or directory to the server's user.
func (s *Postgres) Own(path string) {
	s.t.Helper()
	if err := own(path); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Postgres) closeAdmin() {
	if s.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.admin.Close(ctx)
		s.admin = nil
	}
}

// Exec carries out statements as the user postgres and fails the test if one fails.
func (s *Postgres) Exec(query string) {
	s.t.Helper()
	s.Query(query)
}

// Query is like Exec and returns the rows of all statements as text.
func (s *Postgres) Query(query string) (rows [][]string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startBound)
	defer cancel()
	if s.admin == nil {
		conn, err := s.connect(ctx, "locks")
		if err != nil {
			s.t.Fatal(err)
		}
		s.admin = conn
	}
	results, err := s.admin.Exec(ctx, query).ReadAll()
	if err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	for _, r := range results {
		for _, values := range r.Rows {
			row := make([]string, len(values))
			for i, v := range values {
				row[i] = string(v)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// Value returns the first value of a query as text, or "" without a row.
func (s *Postgres) Value(query string) string {
	s.t.Helper()
	if rows := s.Query(query); len(rows) > 0 {
		return rows[0][0]
	}
	return ""
}

// JumpClock sets the server's wall clock to the true time plus d. The server has to be started with
// StartPostgresWithClock.
func (s *Postgres) JumpClock(d time.Duration) {
	s.t.Helper()
	if !s.faked {
		s.t.Fatal("JumpClock needs StartPostgresWithClock")
	}
	s.setClock(d)
	s.Own(s.clockFile())
}

// postgresImage makes the files of a fresh server once in each process.
var postgresImage = sync.OnceValues(func() (image, error) {
	bin, err := postgresProgram("initdb")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "postgres-image")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := own(dir); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	cmd := exec.Command(bin, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C",
		"--no-sync", "--wal-segsize=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: postgresUser()}
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return packImage(data)
})

// postgresProgram finds a program of the server, which Debian keeps out of PATH.
func postgresProgram(name string) (string, error) {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
		return found[len(found)-1], nil
	}
	bin, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is needed for this test and was not found (Debian, Ubuntu: "+
			"apt-get install postgresql)", name)
	}
	return bin, nil
}

// postgresUser returns the user as which the server runs, or nil for our own user, unless that is
// root.
func postgresUser() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534}
}

// own gives all files at path to the server's user.
func own(path string) error {
	u := postgresUser()
	if u == nil {
		return nil
	}
	return filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(u.Uid), int(u.Gid))
	})
}
