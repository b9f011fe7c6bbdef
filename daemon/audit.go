package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"

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

// auditMost bounds what waits for a log that does not keep up, in bytes of its lines; lossesMost, in locks.
const (
	auditMost  = 64 << 20
	lossesMost = 1 << 20
)

// key is a key as the log has it.
func (d *Daemon) key(k string) string {
	if !d.now.Load().Logging.HashKeys {
		return k
	}
	return hashed(k)
}

func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// Notices takes in what has happened to locks.
func (v events) Notices(ns []cache.Notice) {
	d, at := v.d, time.Now()
	lost := 0
	for i := range ns {
		if ns[i].Kind == cache.NoticeLost {
			d.lately.lose(&ns[i], at)
			d.losses.put(1, func(q []loss) []loss { return append(q, loss{ns[i], at}) })
			lost++
		}
	}
	if n := len(ns) - lost; n > 0 {
		hide := d.now.Load().Logging.HashKeys
		d.auditor.put(n, func(q []byte) []byte {
			w := auditLines{q, d.audited.of(at), hide}
			for i := range ns {
				if ns[i].Kind != cache.NoticeLost {
					w.notice(&ns[i])
				}
			}
			return w.b
		})
	}
}

// writeAudit takes in whole lines.
func (d *Daemon) writeAudit(lines []byte) { _, _ = d.cfg.Audit.Write(lines) }

// lagging says that the log does not keep up.
func (d *Daemon) lagging(n uint64) {
	d.log.Error("the log does not keep up: lines are missing", zap.String("event", "log_lagging"), zap.Uint64("missing", n))
}

// loss is a lock that was lost, and when.
type loss struct {
	cache.Notice
	at time.Time
}

// logLosses logs what was lost, audit or not, with the time at which it happened.
func (d *Daemon) logLosses(ls []loss) {
	core := d.log.Core() // the logger would read its clock, and ours has been read
	if !core.Enabled(zapcore.WarnLevel) {
		return
	}
	for i := range ls {
		l := &ls[i]
		degraded, released := zap.Skip(), zap.Skip()
		if l.Degraded {
			degraded = zap.Bool("degraded", true)
		}
		if l.Released {
			released = zap.Bool("released", true)
		}
		_ = core.Write(zapcore.Entry{Level: zapcore.WarnLevel, Time: l.at, Message: "lock lost"}, sessionFields(engine.SessionOf(l.Session),
			zap.String("key", d.key(l.Key)), zap.Stringer("mode", l.Mode), zap.Uint64("owner", l.Owner), zap.Uint64("fence", l.Fence),
			degraded, zap.String("event", "lost"), zap.Float64("hold_ms", inMillis(l.Took)), zap.String("reason", protocol.Reason(l.Reason).String()), released))
	}
}

func inMillis(nanos int64) float64 { return float64(nanos) / float64(time.Millisecond) }

// sessionFields appends the fields of a log line that tell which session it is about.
func sessionFields(s *engine.Session, f ...zap.Field) []zap.Field {
	f = append(f, zap.Uint64("session", s.ID()), zap.Int("pid", s.Peer().PID))
	if c, greeted := s.Client(); greeted {
		f = append(f, zap.String("client", c))
	}
	return f
}

// sessionEnds writes the audit line of a session that has said hello.
func (d *Daemon) sessionEnds(s *engine.Session) {
	if _, greeted := s.Client(); greeted {
		d.sessionSays(s, "session_end")
	}
}

func (d *Daemon) sessionSays(s *engine.Session, event string) {
	if d.now.Load().Logging.Audit {
		at := time.Now()
		d.auditor.put(1, func(q []byte) []byte {
			w := auditLines{b: q, time: d.audited.of(at)}
			w.session(s, event)
			return w.b
		})
	}
}
