package audit

import (
	"encoding/json"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/engine/enginetest"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// auditSession returns session 12 as the lock table knows it.
func auditSession(t testing.TB, name, label string) *cache.Session {
	e := enginetest.New(t, func() int64 { return 1 }, upstream.Info{}, 11)
	c := cache.NewSession(12, 1)
	c.Shell = e.Greet(engine.Peer{PID: 4711, UID: 1000, GID: 100}, name, label).Session
	return c
}

var auditAt = time.Date(2026, 3, 4, 5, 6, 7, 89_123_999, time.FixedZone("", -3600))

func lineOf(n *cache.Notice, hide bool) string {
	w := lineWriter{time: new(lineTime).of(auditAt), hide: hide}
	w.notice(n)
	return string(w.b)
}

func TestLinesOfTheAudit(t *testing.T) {
	s := auditSession(t, "billing", "worker \"3\"")
	const time, who = `{"level":"info","ts":"2026-03-04T05:06:07.089123-01:00",`,
		`,"session":12,"pid":4711,"client":"billing/worker \"3\""}` + "\n"
	for _, c := range []struct {
		n    cache.Notice
		hide bool
		want string
	}{
		{cache.Notice{Kind: cache.NoticeAcquired, Key: "order:42", Owner: 7, Fence: 1 << 60,
			Took: 1_002_999, Mode: protocol.Shared}, false,
			`"msg":"acquired","key":"order:42","mode":"shared","owner":7,"fence":1152921504606846976,"event":"acquired","wait_ms":1.002`},
		{cache.Notice{Kind: cache.NoticeAcquired, Key: "k", Degraded: true, Took: -1}, false,
			`"msg":"acquired","key":"k","mode":"exclusive","owner":0,"fence":0,"degraded":true,"event":"acquired","wait_ms":0`},
		{cache.Notice{Kind: cache.NoticeRefused, Key: "k", Code: protocol.Busy, Took: 12_340_000_000},
			false,
			`"msg":"refused","key":"k","mode":"exclusive","owner":0,"event":"refused","wait_ms":12340,"code":"busy"`},
		{cache.Notice{Kind: cache.NoticeReleased, Key: "k", Fence: 3, Cause: cache.CauseRelease,
			Took: 120_000}, true,
			`"msg":"released","key":"8254c329a92850f6","mode":"exclusive","owner":0,"fence":3,"event":"released","hold_ms":0.120,"cause":"release"`},
	} {
		c.n.Session = s
		for range 2 { // the second finds what the first has noted
			if got := lineOf(&c.n, c.hide); got != time+c.want+who {
				t.Errorf("\n got %swant %s", got, time+c.want+who)
			}
		}
	}
	w := lineWriter{time: new(lineTime).of(auditAt)}
	w.session(engine.SessionOf(s), "session_begin")
	if want := time + `"msg":"session_begin","event":"session_begin","uid":1000,"gid":100` +
		who; string(w.b) != want {
		t.Errorf("\n got %swant %s", w.b, want)
	}
}

// Whatever bytes a key has, its line is one line of JSON and has it as zap would.
func FuzzAuditLine(f *testing.F) {
	for _, k := range []string{"order:42", `a"b\`, "a\x7f\u0085ü日🔒 <&>\u2028", "a\nb\x01",
		"not \xff UTF-8", ""} {
		f.Add(k, int64(1))
	}
	s := auditSession(f, "c", "")
	zaps := zapcore.NewJSONEncoder(zapcore.EncoderConfig{})
	f.Fuzz(func(t *testing.T, key string, took int64) {
		line := lineOf(&cache.Notice{Kind: cache.NoticeReleased, Key: key, Took: took, Session: s}, false)
		var got, want struct {
			Key  string
			Hold float64 `json:"hold_ms"`
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		b, err := zaps.EncodeEntry(zapcore.Entry{}, []zap.Field{zap.String("key", key)})
		if err == nil {
			err = json.Unmarshal(b.Bytes(), &want)
		}
		if err != nil || got.Key != want.Key {
			t.Errorf("%q is %q, want %q: %v", key, got.Key, want.Key, err)
		}
		if d := inMillis(max(0, took)) - got.Hold; d < 0 && d < -1e-9*got.Hold ||
			d > 0.001+1e-9*got.Hold {
			t.Errorf("%d ns are %v ms", took, got.Hold)
		}
		for i, c := range line {
			if c == '\n' && i != len(line)-1 {
				t.Errorf("two lines: %q", line)
			}
		}
	})
}

func TestTimesOfTheAudit(t *testing.T) {
	var a lineTime
	for _, at := range []time.Time{auditAt, auditAt.Add(time.Second), time.Unix(0, 0).UTC(),
		time.Unix(0, 999_999_999).UTC(), auditAt.UTC().Add(time.Hour)} {
		if got, want := string(a.of(at)), `{"level":"info","ts":"`+
			at.Format("2006-01-02T15:04:05.000000Z07:00"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func BenchmarkAuditLine(b *testing.B) {
	b.ReportAllocs()
	s := auditSession(b, "billing", "worker 3")
	n := cache.Notice{Kind: cache.NoticeAcquired, Key: "order:42", Owner: 7,
		Fence: 1838429381488203776, Took: 9_109_355, Session: s}
	w, at := lineWriter{}, lineTime{}
	for b.Loop() {
		w.b, w.time = w.b[:0], at.of(auditAt)
		w.notice(&n)
	}
	b.SetBytes(int64(len(w.b)))
}
