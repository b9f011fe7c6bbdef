package testserver

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Redis is one private redis-server.
type Redis struct {
	*process
	port  int
	args  []string
	conf  string // the configuration file's text; the server may rewrite it
	env   []string
	admin *goredis.Client
}

// StartRedis starts redis-server from PATH with args in addition to the arguments that keep it
// private (no persistence, loopback only), and returns when it answers. The test fails if the
// program is missing.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	return StartRedisConf(t, "", args...)
}

// StartRedisConf is StartRedis with a configuration file, as a sentinel needs.
func StartRedisConf(t testing.TB, conf string, args ...string) *Redis {
	t.Helper()
	s := &Redis{process: newProcess(t, "redis"), args: args, conf: conf}
	if conf != "" {
		if err := os.WriteFile(s.confFile(), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.closing = s.closeAdmin
	s.Start()
	return s
}

func (s *Redis) confFile() string { return filepath.Join(s.dir, "conf") }

// command returns the command that starts the server.
func (s *Redis) command(bin string) *exec.Cmd {
	var args []string
	if s.conf != "" {
		args = []string{s.confFile()}
	}
	args = append(args, "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1",
		"--unixsocket", s.Socket(),
		"--unixsocketperm",
		"700", "--save", "", "--appendonly", "no", "--dir", s.dir, "--loglevel", "warning")
	cmd := exec.Command(bin, append(args, s.args...)...)
	cmd.Env = append(os.Environ(), s.env...)
	return cmd
}

// Start starts the server again after Kill or Stop, on the same port.
func (s *Redis) Start() {
	s.t.Helper()
	bin := find(s.t, "redis-server", "redis-server")
	s.start("redis-server", &s.port, func() *exec.Cmd { return s.command(bin) }, s.answers)
}

// answers reports whether the server answers a PING. An error reply is enough, because a server
// with a password replies NOAUTH.
func (s *Redis) answers() bool {
	c, err := net.Dial("unix", s.Socket())
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte("*1\r\n$4\r\nPING\r\n"))
	b := make([]byte, 64)
	n, _ := c.Read(b)
	return n > 0 && !strings.HasPrefix(string(b[:n]), "-LOADING")
}

func (s *Redis) closeAdmin() {
	if s.admin != nil {
		_ = s.admin.Close()
		s.admin = nil
	}
}

// JumpClock sets the server's wall clock to the true time plus d. Its other clocks are not
// affected. The server has to be started by StartRedisFaketime.
func (s *Redis) JumpClock(d time.Duration) {
	s.t.Helper()
	if len(s.env) == 0 {
		s.t.Fatal("JumpClock needs StartRedisFaketime")
	}
	s.setClock(d)
	for end := time.Now().Add(startBound); ; time.Sleep(5 * time.Millisecond) {
		at, err := s.Admin().Time(context.Background()).Result()
		if err == nil && time.Until(at.Add(-d)).Abs() < time.Second {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("the server's clock does not jump: it says %v (%v)", at, err)
		}
	}
}

// StartRedisFaketime is StartRedis under libfaketime, for JumpClock.
func StartRedisFaketime(t testing.TB, args ...string) *Redis {
	t.Helper()
	s := &Redis{process: newProcess(t, "redis"), args: args}
	// The C library's malloc replaces jemalloc, because jemalloc and libfaketime wait for each other
	// when they start.
	s.env = s.fakeClockEnv(" libc.so.6")
	s.closing = s.closeAdmin
	s.Start()
	return s
}

// Restart is Kill and Start. Data in memory is lost.
func (s *Redis) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Port returns the TCP port on 127.0.0.1.
func (s *Redis) Port() int { return s.port }

// Addr returns the TCP address.
func (s *Redis) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Socket returns the path of the Unix socket.
func (s *Redis) Socket() string { return filepath.Join(s.dir, "s") }

// URL returns the redis:// URL of the TCP address.
func (s *Redis) URL() string { return "redis://" + s.Addr() }

// Admin returns a client for the test's own use on the Unix socket, without a password. It is
// closed with the server.
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

// Info returns one field of INFO. It asks again if the connection is lost: sentinels cut a server's
// connections when they change its role.
func (s *Redis) Info(field string) string {
	s.t.Helper()
	text, err := "", error(nil)
	for end := time.Now().Add(startBound); ; time.Sleep(20 * time.Millisecond) {
		text, err = s.Admin().Info(context.Background(), "everything").Result()
		if _, cut := errors.AsType[*net.OpError](err); !cut && err != io.EOF || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		s.t.Fatalf("INFO: %v", err)
	}
	for line := range strings.SplitSeq(text, "\r\n") {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return v
		}
	}
	s.t.Fatalf("INFO has no %s", field)
	return ""
}
