package load

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
)

// answering serves one connection after the other. answers returns the answers to a request.
func answering(t *testing.T, answers func(b []byte, q *protocol.Request) []byte) (path string) {
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w := &wire{conn: c, buf: make([]byte, 64<<10)}
			var q protocol.Request
			for w.fill() == nil {
				var out []byte
				for p, ok := w.took(); ok; p, ok = w.took() {
					if protocol.DecodeRequest(p, &q) != nil {
						break
					}
					if q.Op == protocol.OpHello {
						out = protocol.AppendWelcome(out, q.ID, &protocol.Welcome{Version: protocol.Version})
					} else {
						out = answers(out, &q)
					}
				}
				c.Write(out)
			}
			c.Close()
		}
	}()
	return path
}

// once grants every acquire.
func once(b []byte, q *protocol.Request) []byte {
	if q.Op == protocol.OpAcquire {
		return protocol.AppendGrant(b, q.ID, &protocol.Grant{Fence: 1 << 50, Left: 30_000,
			Deadline: 1 << 31, Count: 1})
	}
	return protocol.AppendReleased(b, q.ID, 0)
}

func TestOpenLoopSeesWhatIsLostDoubledOrRefused(t *testing.T) {
	const one = 12 // the id of an acquire
	for name, c := range map[string]struct {
		answers func(b []byte, q *protocol.Request) []byte
		wrong   bool
	}{
		"all answered": {once, false},
		"one lost": {func(b []byte, q *protocol.Request) []byte {
			if q.ID == one {
				return b
			}
			return once(b, q)
		}, true},
		"one doubled": {func(b []byte, q *protocol.Request) []byte {
			if q.ID == one {
				b = once(b, q)
			}
			return once(b, q)
		}, true},
		"one busy": {func(b []byte, q *protocol.Request) []byte {
			if q.ID == one {
				return protocol.AppendError(b, q.ID, protocol.Busy, "", -1)
			}
			return once(b, q)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			drain := 30 * time.Second // ends early when everything is answered
			if c.wrong {
				drain = 200 * time.Millisecond
			}
			o := measured(t, harness.Fleet{Load: Open,
				Args: OpenArgs{Addr: answering(t, c.answers), Conns: 1, Rate: 4000,
					Hold: 2 * time.Millisecond, Drain: drain}, Procs: 1, Warm: 20 * time.Millisecond, Window: 100 * time.Millisecond})
			if (o.Errs > 0) != c.wrong || o.Hist.N() == 0 && !c.wrong {
				t.Errorf("%d answered, %d errors: %s", o.Hist.N(), o.Errs, o.LastErr)
			}
		})
	}
}
