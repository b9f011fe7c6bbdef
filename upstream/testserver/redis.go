package testserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// startBound is how long a server may take to answer or to end. It is only
// reached when something is broken.
const startBound = 20 * time.Second

// Redis is one private redis-server.
type Redis struct {
	t    testing.TB
	dir  string
	port int
	args []string

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been reaped
	admin  *goredis.Client
}

// StartRedis starts redis-server from PATH with args appended to those that
// keep it private (no persistence, loopback only), and returns when it answers.
// The test fails when there is none.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	// A Unix socket's path is limited to about 100 bytes, and t.TempDir has the
	// test's name in it.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	s := &Redis{t: t, dir: dir, args: args}
	t.Cleanup(func() {
		s.Kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s.Start()
	return s
}

// Start starts the server again after Kill or Stop, on the same port.
func (s *Redis) Start() {
	s.t.Helper()
	if s.cmd != nil {
		s.t.Fatal("redis-server runs already")
	}
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		s.t.Fatal("redis-server is needed for this test and is not on PATH (Debian, Ubuntu: apt-get install redis-server)")
	}
	for range 5 {
		first := s.port == 0
		if first {
			s.port = freePort(s.t)
		}
		s.launch(bin)
		if s.answers() {
			return
		}
		s.Kill()
		if !first { // another test's server cannot have taken a port that was ours
			break
		}
		s.port = 0
	}
	log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	s.t.Fatalf("redis-server does not start:\n%s", log)
}

func (s *Redis) launch(bin string) {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(bin, append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--unixsocket", s.Socket(),
		"--unixsocketperm", "700", "--save", "", "--appendonly", "no", "--dir", s.dir, "--loglevel", "warning",
	}, s.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.cmd, s.exited = cmd, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		_ = cmd.Wait()
	}(s.exited)
}

// answers waits until the server says anything at all to a PING; an error reply
// will do (a server with a password says NOAUTH).
func (s *Redis) answers() bool {
	for end := time.Now().Add(startBound); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		select {
		case <-s.exited:
			return false
		default:
		}
		c, err := net.Dial("unix", s.Socket())
		if err != nil {
			continue
		}
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_, _ = c.Write([]byte("*1\r\n$4\r\nPING\r\n"))
		b := make([]byte, 64)
		n, _ := c.Read(b)
		_ = c.Close()
		if n > 0 && !strings.HasPrefix(string(b[:n]), "-LOADING") {
			return true
		}
	}
	return false
}

// Kill ends the server at once, as a crash does, and waits for its end.
func (s *Redis) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the server in the orderly way and waits for its end.
func (s *Redis) Stop() { s.end(syscall.SIGTERM) }

func (s *Redis) end(sig syscall.Signal) {
	if s.admin != nil {
		_ = s.admin.Close()
		s.admin = nil
	}
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(sig)
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-s.exited:
	case <-time.After(startBound):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
	s.cmd = nil
}

// Restart is Kill and Start: what was in memory is gone.
func (s *Redis) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Pause stops the process with SIGSTOP: connections stay open, connecting
// still works, nothing is answered.
func (s *Redis) Pause() { s.signal(syscall.SIGSTOP) }

// Resume continues the process after Pause.
func (s *Redis) Resume() { s.signal(syscall.SIGCONT) }

func (s *Redis) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// PID is the process id, for CPU accounting.
func (s *Redis) PID() int { return s.cmd.Process.Pid }

// Port is the TCP port on 127.0.0.1.
func (s *Redis) Port() int { return s.port }

// Addr is the TCP address.
func (s *Redis) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Socket is the path of the Unix socket.
func (s *Redis) Socket() string { return filepath.Join(s.dir, "s") }

// URL is the redis:// URL of the TCP address.
func (s *Redis) URL() string { return "redis://" + s.Addr() }

// Admin is a connection for the test's own use on the Unix socket, without a
// password; it is closed with the server.
func (s *Redis) Admin() *goredis.Client {
	if s.admin == nil {
		s.admin = goredis.NewClient(&goredis.Options{Network: "unix", Addr: s.Socket(), Protocol: 2,
			MaxRetries: -1, PoolSize: 2, PipelinePoolSize: -1, DialerRetries: 1, DisableIdentity: true})
	}
	return s.admin
}

// Do runs one command on the Admin connection and fails the test on an error
// reply. A nil reply is nil.
func (s *Redis) Do(args ...any) any {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startBound)
	defer cancel()
	v, err := s.Admin().Do(ctx, args...).Result()
	if err == goredis.Nil {
		return nil
	}
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return v
}

// Info is one field of INFO.
func (s *Redis) Info(field string) string {
	s.t.Helper()
	for line := range strings.SplitSeq(fmt.Sprint(s.Do("INFO", "everything")), "\r\n") {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return v
		}
	}
	s.t.Fatalf("INFO has no %s", field)
	return ""
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
