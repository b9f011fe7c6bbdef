// Package audit writes what happens to locks into the log: losses always, and an audit log on request. Its goroutines
// write, so that a slow reader of the log delays nothing else. Close waits for them.
package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// Settings say what is logged of locks.
type Settings struct {
	Audit    bool // every lock that is acquired, refused or released, and every session; what is lost is logged anyway
	HashKeys bool // keys appear as the first 8 bytes of their SHA-256, in hexadecimal
}

// maxLines and maxLosses limit what waits for a log that does not keep up: bytes of lines, and locks.
const (
	maxLines  = 64 << 20
	maxLosses = 1 << 20
)

// Log logs what happens to locks.
type Log struct {
	log    *zap.Logger
	out    io.Writer
	set    atomic.Pointer[Settings]
	lines  *Backlog[byte] // whole lines
	clock  lineTime       // used while lines are put into the backlog
	losses *Backlog[loss]
}

// New makes a log of losses, and an audit log that writes lines of JSON to out, many at once.
func New(log *zap.Logger, out io.Writer, set Settings) *Log {
	l := &Log{log: log, out: out}
	l.Set(set)
	l.lines = NewBacklog(maxLines, func(lines []byte) { _, _ = l.out.Write(lines) }, l.lagging)
	l.losses = NewBacklog(maxLosses, l.writeLosses, l.lagging)
	return l
}

// Set changes the settings.
func (l *Log) Set(set Settings) { l.set.Store(&set) }

// Close writes what waits, and ends the goroutines.
func (l *Log) Close() {
	l.lines.Close()
	l.losses.Close()
}

// Key returns a key as the log shows it.
func (l *Log) Key(k string) string {
	if !l.set.Load().HashKeys {
		return k
	}
	return hashed(k)
}

func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// Notices logs what has happened to locks at a time.
func (l *Log) Notices(ns []cache.Notice, at time.Time) {
	lost := 0
	for i := range ns {
		if ns[i].Kind == cache.NoticeLost {
			l.losses.Put(1, func(q []loss) []loss { return append(q, loss{ns[i], at}) })
			lost++
		}
	}
	if n := len(ns) - lost; n > 0 {
		hide := l.set.Load().HashKeys
		l.lines.Put(n, func(q []byte) []byte {
			w := lineWriter{q, l.clock.of(at), hide}
			for i := range ns {
				if ns[i].Kind != cache.NoticeLost {
					w.notice(&ns[i])
				}
			}
			return w.b
		})
	}
}

// lagging logs that the log does not keep up.
func (l *Log) lagging(n uint64) {
	l.log.Error("the log does not keep up: lines are missing", zap.String("event", "log_lagging"), zap.Uint64("missing", n))
}

// loss is a lock that was lost, and when.
type loss struct {
	cache.Notice
	at time.Time
}

// writeLosses logs what was lost, with the time at which it happened.
func (l *Log) writeLosses(ls []loss) {
	core := l.log.Core() // the logger would read its clock, and ours has been read
	if !core.Enabled(zapcore.WarnLevel) {
		return
	}
	for i := range ls {
		n := &ls[i]
		degraded, released := zap.Skip(), zap.Skip()
		if n.Degraded {
			degraded = zap.Bool("degraded", true)
		}
		if n.Released {
			released = zap.Bool("released", true)
		}
		_ = core.Write(zapcore.Entry{Level: zapcore.WarnLevel, Time: n.at, Message: "lock lost"}, SessionFields(engine.SessionOf(n.Session),
			zap.String("key", l.Key(n.Key)), zap.Stringer("mode", n.Mode), zap.Uint64("owner", n.Owner), zap.Uint64("fence", n.Fence),
			degraded, zap.String("event", "lost"), zap.Float64("hold_ms", inMillis(n.Took)), zap.String("reason", protocol.Reason(n.Reason).String()), released))
	}
}

func inMillis(nanos int64) float64 { return float64(nanos) / float64(time.Millisecond) }

// SessionFields appends the fields of a log line that tell which session it is about.
func SessionFields(s *engine.Session, f ...zap.Field) []zap.Field {
	f = append(f, zap.Uint64("session", s.ID()), zap.Int("pid", s.Peer().PID))
	if c, greeted := s.Client(); greeted {
		f = append(f, zap.String("client", c))
	}
	return f
}

// SessionBegins writes the audit line of a session that has said hello.
func (l *Log) SessionBegins(s *engine.Session) { l.session(s, "session_begin") }

// SessionEnds writes the audit line of a session that has ended, if it has said hello.
func (l *Log) SessionEnds(s *engine.Session) {
	if _, greeted := s.Client(); greeted {
		l.session(s, "session_end")
	}
}

func (l *Log) session(s *engine.Session, event string) {
	if !l.set.Load().Audit {
		return
	}
	at := time.Now()
	l.lines.Put(1, func(q []byte) []byte {
		w := lineWriter{b: q, time: l.clock.of(at)}
		w.session(s, event)
		return w.b
	})
}
