package both

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
)

func TestTheStateOfAPairIsComplete(t *testing.T) {
	s := &Store{known: [2]upstream.Session{{No: 1, Until: 2}, {No: 3, Until: 4}},
		tokens: map[token]tokenState{{"k", 1}: queued}}
	states := [2][]byte{{1}, {2}}
	image := func(s *Store, states *[2][]byte) ([]byte, error) {
		c := new(cache.Coder)
		s.code(c, states)
		return c.B, c.Err
	}
	storetest.Complete{Root: s,
		Snapshot: func() ([]byte, error) { return image(s, &states) },
		Again: func(b []byte) ([]byte, error) {
			next, c := &Store{tokens: make(map[token]tokenState)}, &cache.Coder{B: b, Reading: true}
			var states [2][]byte
			if next.code(c, &states); c.Err != nil {
				return nil, c.Err
			}
			return image(next, &states)
		},
		LeftOut: map[string]string{
			"both.Store.old": "has a state of its own", "both.Store.new": "has a state of its own",
			"both.Store.info": "from the drivers", "both.Store.sessional": "from the drivers",
			"both.Store.order":     "read again from the note of the new store",
			"both.Store.hints":     "hints may be lost",
			"both.Store.sessions":  "the drivers tell of their sessions again",
			"upstream.Session.TTL": "the same",
			"both.Store.stop":      "each process has its own",
			"both.Store.wg":        "each process has its own",
			"both.Store.wall":      "each process has its own",
		},
	}.Check(t)
}
