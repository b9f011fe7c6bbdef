package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// Logging says what is logged of locks. It can change while a daemon runs.
type Logging struct {
	Audit    bool // every lock that is acquired, refused or released, and every session; what is lost is logged anyway
	HashKeys bool // keys appear as the first 8 bytes of their SHA-256, in hexadecimal
}

// record is one thing that is to be logged. Of a session's begin or end the notice says whose
// it is, and nothing else.
type record struct {
	cache.Notice
	at    time.Time
	event string
}

// auditMost bounds what waits for a log that does not keep up: a million records are some 200 MB.
const auditMost = 1 << 20

// setAudit has every shard tell of what Logging asks for.
func (e *Engine) setAudit(on bool) {
	e.audit.Store(on)
	for i := range e.shards {
		sh := e.lock(i)
		sh.out.Audit = on
		sh.mu.Unlock()
	}
}

// key is a key as the log has it.
func (d *Daemon) key(k string) string {
	if !d.now.Load().Logging.HashKeys {
		return k
	}
	sum := sha256.Sum256([]byte(k))
	return hex.EncodeToString(sum[:8])
}

// notice takes in what has happened to locks.
func (d *Daemon) notice(ns []cache.Notice) {
	at := time.Now()
	for i := range ns {
		if ns[i].Kind == cache.NoticeLost {
			d.lately.lose(&ns[i], at)
		}
	}
	d.auditor.put(len(ns), func(i int, r *record) { *r = record{Notice: ns[i], at: at, event: noticeEvents[ns[i].Kind]} })
}

// lagging says that the log does not keep up.
func (d *Daemon) lagging(n uint64) {
	d.log.Error("the log does not keep up: lines are missing", zap.String("event", "log_lagging"), zap.Uint64("missing", n))
}

// noticeEvents are what can happen to a lock.
var noticeEvents = [...]string{cache.NoticeAcquired: "acquired", cache.NoticeRefused: "refused",
	cache.NoticeReleased: "released", cache.NoticeLost: "lost"}

// write logs a record, with the time at which it happened.
func (d *Daemon) write(r *record) {
	log, level, text := d.audit, zapcore.InfoLevel, r.event
	if r.Kind == cache.NoticeLost {
		log, level, text = d.log, zapcore.WarnLevel, "lock lost"
	}
	if core := log.Core(); core.Enabled(level) { // the logger would read its clock, and ours has been read
		d.line = d.fields(d.line[:0], r)
		_ = core.Write(zapcore.Entry{Level: level, Time: r.at, Message: text}, d.line)
	}
}

// fields appends what is logged of a record.
func (d *Daemon) fields(f []zap.Field, r *record) []zap.Field {
	s, event := r.Session.Shell.(*Session), zap.String("event", r.event)
	if r.Kind == 0 {
		return s.who(append(f, event, zap.Int("uid", s.peer.UID), zap.Int("gid", s.peer.GID)))
	}
	f = append(f, zap.String("key", d.key(r.Key)), zap.String("mode", r.Mode.String()), zap.Uint64("owner", r.Owner))
	if r.Kind != cache.NoticeRefused {
		f = append(f, zap.Uint64("fence", r.Fence))
	}
	if r.Degraded {
		f = append(f, zap.Bool("degraded", true))
	}
	f = append(f, event)
	switch wait, held := zap.Float64("wait_ms", inMillis(r.Took)), zap.Float64("hold_ms", inMillis(r.Took)); r.Kind {
	case cache.NoticeAcquired:
		f = append(f, wait)
	case cache.NoticeRefused:
		f = append(f, wait, zap.String("code", protocol.Code(r.Code).String()))
	case cache.NoticeReleased:
		f = append(f, held, zap.String("cause", causes[r.Cause]))
	case cache.NoticeLost:
		f = append(f, held, zap.String("reason", protocol.Reason(r.Reason).String()))
	}
	return s.who(f)
}

func inMillis(nanos int64) float64 { return float64(nanos) / float64(time.Millisecond) }

// who appends whose session it is.
func (s *Session) who(f []zap.Field) []zap.Field {
	f = append(f, zap.Uint64("session", s.core.ID), zap.Int("pid", s.peer.PID))
	if c := s.client.Load(); c != nil {
		f = append(f, zap.String("client", *c))
	}
	return f
}

// sessionBegins and sessionEnds are for the audit: of sessions that have said hello.
func (d *Daemon) sessionBegins(s *Session) { d.sessionSays(s, "session_begin") }

func (d *Daemon) sessionEnds(s *Session) {
	if s.client.Load() != nil {
		d.sessionSays(s, "session_end")
	}
}

func (d *Daemon) sessionSays(s *Session, event string) {
	if d.now.Load().Logging.Audit {
		d.auditor.put(1, func(_ int, r *record) {
			*r = record{Notice: cache.Notice{Session: s.core}, at: time.Now(), event: event}
		})
	}
}
