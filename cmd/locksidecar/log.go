package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/run"
)

// console reports whether the log is formatted for people.
func (m *Main) console(c config.Log) bool {
	return c.Format == "console" || c.Format == "auto" && run.IsTerminal(m.Stderr)
}

// logs has the outputs of the daemon. No output is sampled, because no line about a lock may be
// missing.
type logs struct {
	main  *zap.Logger
	raw   io.Writer // the writer that main writes to, for whole lines
	level zap.AtomicLevel
}

// newLogs logs to standard error.
func (m *Main) newLogs(c config.Log) *logs {
	level := zap.NewAtomicLevelAt(levelOf(c))
	// The struct hides the file's Sync, which would wait for a disk.
	out := zapcore.Lock(zapcore.AddSync(struct{ io.Writer }{m.Stderr}))
	return &logs{main: zap.New(zapcore.NewCore(m.encoder(c), out, level)), raw: out, level: level}
}

func (m *Main) encoder(c config.Log) zapcore.Encoder {
	if m.console(c) {
		ec := zap.NewDevelopmentEncoderConfig()
		ec.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		ec.CallerKey = zapcore.OmitKey
		return zapcore.NewConsoleEncoder(ec)
	}
	ec := zap.NewProductionEncoderConfig()
	ec.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	ec.EncodeDuration = zapcore.StringDurationEncoder
	ec.CallerKey = zapcore.OmitKey
	return zapcore.NewJSONEncoder(ec)
}

func levelOf(c config.Log) zapcore.Level {
	level, err := zapcore.ParseLevel(c.Level)
	if err != nil {
		level = zapcore.InfoLevel // the configuration accepts no other word
	}
	return level
}

// announce reports that the daemon serves, and where. On a terminal it also suggests commands.
func (m *Main) announce(log *zap.Logger, c *config.Config, needs []*need) {
	var kinds, where []string
	for _, n := range needs {
		for _, p := range n.plans {
			kinds, where = append(kinds, string(p.kind)), append(where, p.where)
		}
	}
	if m.console(c.Log) {
		examples := strings.Join(m.examples(c.Socket), "\n  ")
		fmt.Fprintf(m.Stderr, "locksidecar serves at %s (store: %s, %s). Try, in another shell:\n\n  %s\n\n",
			c.Socket, strings.Join(kinds, " and "), strings.Join(where, " and "), examples)
		if c.AdminListen != "" {
			fmt.Fprintf(m.Stderr, "Open this page in a browser to see locks, holders and stores: %s\n\n",
				pageURL(c.AdminListen))
		} else {
			fmt.Fprintf(m.Stderr, "--admin-listen 127.0.0.1:9402 adds a page of locks, holders and stores.\n\n")
		}
		return
	}
	log.Info("serving", zap.String("event", "serving"), zap.String("socket", c.Socket),
		zap.String("store", strings.Join(kinds, ", ")), zap.String("upstream", strings.Join(where, ", ")),
		zap.String("version", thisBuild().Version), zap.String("page", pageURL(c.AdminListen)))
}

// pageURL returns the page's URL for a browser, or "" if the page is only on the admin socket.
func pageURL(listen string) string {
	if listen == "" {
		return ""
	}
	if host, port, err := net.SplitHostPort(listen); err == nil {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			listen = net.JoinHostPort("localhost", port)
		}
	}
	return "http://" + listen + "/"
}

// examples returns commands that can be run without changes.
func (m *Main) examples(socket string) []string {
	program := "locksidecar"
	if self, err := os.Executable(); err == nil {
		if found, err := exec.LookPath(program); err != nil || !sameFile(found, self) {
			program = self
		}
	}
	abs, err := filepath.Abs(socket)
	if err != nil {
		abs = socket
	}
	flag := ""
	if abs != config.DefaultSocket(m.Env, os.Geteuid()) {
		flag = " --socket " + abs
	}
	return []string{
		fmt.Sprintf(`%s lock%s demo -- sh -c 'echo "got it, fence $LOCKSIDECAR_FENCE"; sleep 10'`,
			program, flag),
		fmt.Sprintf(`%s lock%s -n demo -- true || echo "held, exit code $?"`, program, flag),
		fmt.Sprintf(`%s locks%s`, program, flag),
	}
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
