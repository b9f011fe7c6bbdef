package conformance

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/locksidecar/locksidecar/protocol"
)

// errCut has a relay end the connection.
var errCut = errors.New("cut")

// wire changes what passes between the reference client and the daemon, so that the
// client behaves as one that misreads it. One is made a connection; nil passes
// everything on.
type wire struct {
	up   func(payload []byte, q *protocol.Request) ([]byte, error)
	down func(payload []byte, m *protocol.Message) ([]byte, error)
	raw  func(b []byte) error // sees each read from the daemon
}

// wireMutants are the mutants that misread or miswrite frames.
var wireMutants = map[string]func() *wire{
	"ignores-lost": func() *wire {
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if m.ID == 0 && m.Event == protocol.EventLost {
				return nil, nil
			}
			return b, nil
		})
	},
	"refuses-appended-fields": func() *wire {
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if n, known := int(b[0]&0x0f), map[protocol.Event]int{64: 6, 65: 4, 66: 4, 67: 4}[m.Event]; b[0]&0xf0 != 0x90 ||
				(m.ID == 0 && known > 0 && n > known) || (m.ID != 0 && n > 12) {
				return nil, errCut
			}
			return b, nil
		})
	},
	"unknown-code-is-success": func() *wire {
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if m.ID != 0 && m.Code > protocol.Overlong {
				return body(protocol.AppendGrant(nil, m.ID, &protocol.Grant{Fence: 1, Count: 1, Deadline: 1 << 50})), nil
			}
			return b, nil
		})
	},
	"unknown-event-is-fatal": func() *wire {
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if m.ID == 0 && (m.Event < protocol.EventLost || m.Event > protocol.EventFatal) {
				return nil, errCut
			}
			return b, nil
		})
	},
	"welcome-comes-first": func() *wire {
		greeted := false
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if greeted = greeted || m.ID != 0; !greeted {
				return nil, errCut
			}
			return b, nil
		})
	},
	"shortest-numbers-only": func() *wire {
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if b[1] >= 0xcc && b[1] <= 0xd3 && m.Code < 128 {
				return nil, errCut
			}
			return b, nil
		})
	},
	"reuses-ids": func() *wire {
		var last uint64
		return &wire{
			up: func(_ []byte, q *protocol.Request) ([]byte, error) {
				last, q.ID = q.ID, 7
				return body(protocol.AppendRequest(nil, q)), nil
			},
			down: func(b []byte, m *protocol.Message) ([]byte, error) {
				if m.ID == 7 {
					return withID(b, m, last), nil
				}
				return b, nil
			},
		}
	},
	"unknown-id-is-fatal": func() *wire {
		known := map[uint64]bool{}
		return &wire{
			up: func(b []byte, q *protocol.Request) ([]byte, error) {
				known[q.ID] = true
				return b, nil
			},
			down: func(b []byte, m *protocol.Message) ([]byte, error) {
				if m.ID != 0 && !known[m.ID] {
					return nil, errCut
				}
				return b, nil
			},
		}
	},
	"matches-replies-by-order": func() *wire {
		var ids []uint64
		return &wire{
			up: func(b []byte, q *protocol.Request) ([]byte, error) {
				ids = append(ids, q.ID)
				return b, nil
			},
			down: func(b []byte, m *protocol.Message) ([]byte, error) {
				if m.ID == 0 || len(ids) == 0 {
					return b, nil
				}
				id := ids[0]
				ids = ids[1:]
				return withID(b, m, id), nil
			},
		}
	},
	"counts-left-from-receipt": func() *wire {
		return grants(func(g *protocol.Grant) { g.Deadline = bootMillis() + g.Left })
	},
	"forgets-the-end": func() *wire { return grants(func(g *protocol.Grant) { g.End = 0 }) },
	"beats-cover-later-grants": func() *wire {
		var until uint64
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if m.ID == 0 && m.Event == protocol.EventBeat {
				until, _, _ = m.Beat()
				return b, nil
			}
			return regrant(b, m, func(g *protocol.Grant) { g.Deadline = max(g.Deadline, until) }), nil
		})
	},
	"ignores-beats": func() *wire {
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if m.ID == 0 && m.Event == protocol.EventBeat {
				return nil, nil
			}
			return b, nil
		})
	},
	"takes-every-clock-for-its-own": func() *wire { return rewelcome(func(w *protocol.Welcome) { w.Now = bootMillis() }) },
	"believes-a-slow-hello": func() *wire {
		var sent uint64
		w := rewelcome(func(w *protocol.Welcome) {
			if sent <= w.Now && w.Now <= bootMillis() {
				w.Now = sent // so that their difference is none
			}
		})
		w.up = func(b []byte, q *protocol.Request) ([]byte, error) {
			if q.Op == protocol.OpHello {
				sent = bootMillis()
			}
			return b, nil
		}
		return w
	},
	"speaks-any-version": func() *wire { return rewelcome(func(w *protocol.Welcome) { w.Version = 1 }) },
	"never-pings": func() *wire {
		return &wire{up: func(b []byte, q *protocol.Request) ([]byte, error) {
			if q.Op == protocol.OpPing {
				return nil, nil
			}
			return b, nil
		}}
	},
	"stays-after-fatal": func() *wire {
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if m.ID == 0 && m.Event == protocol.EventFatal {
				return nil, nil
			}
			return b, nil
		})
	},
	"passes-over-bad-frames": func() *wire {
		return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
			if m == nil {
				return nil, nil
			}
			return b, nil
		})
	},
	"one-read-is-one-frame": func() *wire {
		return &wire{raw: func(b []byte) error {
			if len(b) < 4 || int(binary.BigEndian.Uint32(b)) != len(b)-4 {
				return errCut
			}
			return nil
		}}
	},
	"short-frames-only": func() *wire {
		return downOnly(func(b []byte, _ *protocol.Message) ([]byte, error) {
			if len(b) > 4096 {
				return nil, errCut
			}
			return b, nil
		})
	},
	"never-releases": func() *wire {
		return &wire{up: func(b []byte, q *protocol.Request) ([]byte, error) {
			if q.Op == protocol.OpRelease {
				return body(protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpCancel, ID: q.ID, Target: 1, Key: q.Key})), nil
			}
			return b, nil
		}}
	},
}

func downOnly(f func([]byte, *protocol.Message) ([]byte, error)) *wire { return &wire{down: f} }

// body is a frame's payload.
func body(frame []byte) []byte { return frame[protocol.HeaderLen:] }

// withID puts another id into a message; the head is written anew.
func withID(b []byte, m *protocol.Message, id uint64) []byte {
	rest := b[1:]
	for range 2 { // code, id
		rest = rest[len(valueOf(rest)):]
	}
	return append(packNumber(packNumber([]byte{b[0]}, uint64(m.Code)), id), rest...)
}

func valueOf(b []byte) []byte {
	switch c := b[0]; {
	case c >= 0xcc && c <= 0xcf:
		return b[:1+1<<(c-0xcc)]
	case c >= 0xd0 && c <= 0xd3:
		return b[:1+1<<(c-0xd0)]
	}
	return b[:1]
}

// regrant changes a grant; what else it is, is left as it is.
func regrant(b []byte, m *protocol.Message, change func(*protocol.Grant)) []byte {
	if m.ID == 0 || m.Code != protocol.OK || b[0] != 0x98 {
		return b
	}
	n := *m
	g, err := n.Grant()
	if err != nil {
		return b
	}
	change(&g)
	return body(protocol.AppendGrant(nil, m.ID, &g))
}

func grants(change func(*protocol.Grant)) *wire {
	return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) { return regrant(b, m, change), nil })
}

func rewelcome(change func(*protocol.Welcome)) *wire {
	return downOnly(func(b []byte, m *protocol.Message) ([]byte, error) {
		if m.ID != 1 || b[0] != 0x9c {
			return b, nil
		}
		n := *m
		w, err := n.Welcome()
		if err != nil {
			return b, nil
		}
		change(&w)
		return body(protocol.AppendWelcome(nil, m.ID, &w)), nil
	})
}

// startRelay listens for the reference client, and passes on what the mutant lets
// pass. It ends with the process.
func startRelay(socket string, mutant func() *wire) string {
	dir, err := os.MkdirTemp(filepath.Dir(socket), "r")
	if err != nil {
		panic(err)
	}
	path := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				panic(err)
			}
			far, err := net.Dial("unix", socket)
			if err != nil {
				_ = near.Close()
				continue
			}
			w := mutant()
			end := func() { _, _ = near.Close(), far.Close() }
			go func() {
				defer end()
				relay(near, far, nil, func(b []byte) ([]byte, error) {
					if w.up == nil {
						return b, nil
					}
					var q protocol.Request
					if err := protocol.DecodeRequest(b, &q); err != nil {
						return b, nil
					}
					return w.up(b, &q)
				})
			}()
			go func() {
				defer end()
				relay(far, near, w.raw, func(b []byte) ([]byte, error) {
					if w.down == nil {
						return b, nil
					}
					m, err := protocol.DecodeMessage(b)
					if err != nil {
						if out, err := w.down(b, nil); out == nil {
							return out, err
						}
						return b, nil
					}
					return w.down(b, &m)
				})
			}()
		}
	}()
	return path
}

func relay(from io.Reader, to io.Writer, raw func([]byte) error, pass func([]byte) ([]byte, error)) {
	var have []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || raw != nil && raw(buf[:n]) != nil {
			return
		}
		have = append(have, buf[:n]...)
		for {
			payload, rest, ok, err := protocol.Cut(have, 1<<20)
			if err != nil { // not a frame: as it stands
				_, _ = to.Write(have)
				have = nil
				break
			}
			if !ok {
				break
			}
			out, err := pass(payload)
			if err != nil {
				return
			}
			if out != nil {
				if _, err := to.Write(header(out)); err != nil {
					return
				}
			}
			have = rest
		}
	}
}
