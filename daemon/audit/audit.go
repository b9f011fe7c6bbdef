// Package audit observes an engine. It logs lost locks always, and all events of locks in an audit
// log on request. It also passes on the spans of traced acquires. Its goroutines write, so that a
// slow reader delays nothing else. Close waits for them.
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
)

// Settings selects the events of locks that are logged.
type Settings struct {
	// Audit adds every lock that is acquired, refused or released, and every session. Losses are
	// always logged.
	Audit    bool
	HashKeys bool // keys appear as the first 8 bytes of their SHA-256, in hexadecimal
}

// maxLines and maxLosses bound the queues for a log that cannot keep up: bytes of lines, and lost
// locks.
const (
	maxLines  = 64 << 20
	maxLosses = 1 << 20
)

// Config configures a Log.
type Config struct {
	Log   *zap.Logger
	Out   io.Writer    // the audit log: lines of JSON, many in one call
	Spans func(Span)   // receives the spans of traced acquires; nil for none
	Clock func() int64 // the engine's
	// Lost is called with each lost hold. It must not block.
	Lost func(n *cache.Notice, at time.Time)
}

// Log logs events of locks. It implements engine.Observer.
type Log struct {
	cfg    Config
	set    atomic.Pointer[Settings]
	lines  *Backlog[byte] // whole lines
	time   lineTime       // used while lines are put into the backlog
	losses *Backlog[loss]
	spans  *Backlog[engine.Span] // nil without Config.Spans

	throttled, refused, denied Limiter
}

// New returns a log. Close ends its goroutines.
func New(cfg Config, set Settings) *Log {
	l := &Log{cfg: cfg}
	l.Set(set)
	l.lines = NewBacklog(maxLines, func(lines []byte) { _, _ = cfg.Out.Write(lines) }, l.lagging)
	l.losses = NewBacklog(maxLosses, l.writeLosses, l.lagging)
	if cfg.Spans != nil {
		l.spans = NewBacklog(maxSpans, l.passSpans, l.spansDropped)
	}
	return l
}

// Set changes the settings.
func (l *Log) Set(set Settings) { l.set.Store(&set) }

// Close writes the queued lines and spans, and ends the goroutines.
func (l *Log) Close() {
	l.lines.Close()
	l.losses.Close()
	if l.spans != nil {
		l.spans.Close()
	}
}

// finishTime is how long Finish waits.
const finishTime = time.Second

// Finish is like Close, but does not wait long for a slow reader.
func (l *Log) Finish() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Close()
	}()
	select {
	case <-done:
	case <-time.After(finishTime):
	}
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

// Notices logs events of locks.
func (l *Log) Notices(ns []cache.Notice) {
	at, lost := time.Now(), 0
	for i := range ns {
		if ns[i].Kind == cache.NoticeLost {
			l.cfg.Lost(&ns[i], at)
			l.losses.Put(1, func(q []loss) []loss { return append(q, loss{ns[i], at}) })
			lost++
		}
	}
	if n := len(ns) - lost; n > 0 {
		hide := l.set.Load().HashKeys
		l.lines.Put(n, func(q []byte) []byte {
			w := lineWriter{q, l.time.of(at), hide}
			for i := range ns {
				if ns[i].Kind != cache.NoticeLost {
					w.notice(&ns[i])
				}
			}
			return w.b
		})
	}
}

// lagging logs that lines were dropped because the log cannot keep up.
func (l *Log) lagging(n uint64) {
	l.cfg.Log.Error("the log does not keep up: lines are missing",
		zap.String("event", "log_lagging"), zap.Uint64("missing", n))
}

// loss is a lost lock, with the time of the loss.
type loss struct {
	cache.Notice
	at time.Time
}

// writeLosses logs lost locks, each with the time of its loss.
func (l *Log) writeLosses(ls []loss) {
	core := l.cfg.Log.Core() // the logger would read its clock, and ours has been read
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
		_ = core.Write(zapcore.Entry{Level: zapcore.WarnLevel, Time: n.at, Message: "lock lost"},
			sessionFields(engine.SessionOf(n.Session),
				zap.String("key", l.Key(n.Key)), zap.Stringer("mode", n.Mode),
				zap.Uint64("owner", n.Owner), zap.Uint64("fence", n.Fence), degraded,
				zap.String("event", "lost"), zap.Float64("hold_ms", inMillis(n.Took)),
				zap.String("reason", n.Reason.String()), released))
	}
}

func inMillis(nanos int64) float64 { return float64(nanos) / float64(time.Millisecond) }

// sessionFields appends the fields of a log line that identify a session. Of a detached hold only
// the user is known.
func sessionFields(s *engine.Session, f ...zap.Field) []zap.Field {
	if s.Detached() {
		return append(f, zap.Int("uid", s.Peer().UID))
	}
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
		w := lineWriter{b: q, time: l.time.of(at)}
		w.session(s, event)
		return w.b
	})
}
