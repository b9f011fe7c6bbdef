package zookeeper

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
)

// FuzzFrames sends any bytes in any pieces. The wire must follow each frame to its end, and keep
// only a few bytes of the first frame.
func FuzzFrames(f *testing.F) {
	hello := append([]byte{0, 0, 0, 37}, make([]byte, 37)...)
	f.Add(hello, uint8(1))
	// This session has a negative timeout.
	f.Add(append([]byte{0, 0, 0, 37, 0, 0, 0, 0, 0xff}, make([]byte, 32)...), uint8(9))
	f.Add(append(hello, 0, 0, 0, 20, 1, 2, 3), uint8(3))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), uint8(7))
	f.Add(append(hello, 0xff, 0xff, 0xff, 0xff), uint8(255))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		w := &wire{se: &session{store: bareStore(t)}}
		for len(b) > 0 {
			some := b[:min(len(b), int(piece)+1)]
			b = b[len(some):]
			for len(some) > 0 {
				used, err := w.follow(some)
				if err != nil {
					return
				}
				if used <= 0 || used > len(some) || w.left < 0 || len(w.head) > 3 || len(w.start) > zxidEnd ||
					len(w.hello) > helloNew {
					t.Fatalf("%d of %d bytes are used; %d are left, with %d and %d kept", used, len(some), w.left,
						len(w.head), len(w.hello))
				}
				some = some[used:]
			}
		}
		if high := w.se.store.high.Load(); high < 0 || high > int64(cache.MaxBase) {
			t.Errorf("transaction %d", high)
		}
		if w.ttl < 0 {
			t.Errorf("a session of %v", w.ttl)
		}
	})
}
