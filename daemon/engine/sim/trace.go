package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// kind is the kind of an event in the hash of the trace.
type kind uint8

const (
	kindSend kind = iota + 1 // a client has sent a request
	kindReply
	kindPush
	kindHold   // a client has read the grant of a new hold
	kindGone   // a client no longer believes in a hold
	kindOp     // the store carries out an op
	kindResult // the daemon hears of it
	kindFault
)

// trace keeps the last lines of text, which explain a failure.
type trace struct {
	keep  int
	lines []line
}

type line struct {
	at   int64
	key  string // "" if it concerns no single key
	text string
}

func (t *trace) add(now int64, key, text string) {
	// It keeps more lines than it prints, because most of them may concern other keys.
	if enough := 256 * t.keep; len(t.lines) >= 2*enough {
		t.lines = append(t.lines[:0], t.lines[enough:]...)
	}
	t.lines = append(t.lines, line{now, key, text})
}

// of returns the last lines that concern the key, or no single key.
func (t *trace) of(key string) (lines []string) {
	for i := len(t.lines) - 1; i >= 0 && len(lines) < t.keep; i-- {
		if l := t.lines[i]; key == "" || l.key == key || l.key == "" {
			lines = append(lines, fmt.Sprintf("%14.6fs  %-3s %s", time.Duration(l.at-epoch).Seconds(),
				l.key, l.text))
		}
	}
	slices.Reverse(lines)
	return lines
}

func (w *World) describeStore(s *simStore, k *key) {
	if m := s.redis; m != nil && m.permits[k.name] != nil {
		w.say(k, "store %s at %d ms: %+v", s.name, m.clock()/1000, *m.permits[k.name])
	}
	if m := s.redis; m != nil && m.keys[k.name] != nil {
		w.say(k, "store %s at %d ms: %+v", s.name, m.clock()/1000, *m.keys[k.name])
	}
	if m := s.etcd; m != nil {
		for _, e := range m.keys[k.name] {
			w.say(k, "store %s: %+v alive %v", s.name, *e, m.sessions[e.session] != nil)
		}
	}
}

// describe adds the state of all stores and clients, as far as it concerns a key.
func (w *World) describe(key string) {
	for _, k := range w.all() {
		if key != "" && k.name != key {
			continue
		}
		for _, s := range w.stores {
			w.describeStore(s, k)
		}
	}
	for _, c := range w.clients {
		for _, q := range c.calls {
			if q.op == protocol.OpPing {
				continue
			}
			w.say(nil, "client %d waits for %s %d %s", c.id, requestNames[q.op], q.id,
				q.keyName()+q.keyNames())
		}
	}
}
