package takeover

import "github.com/locksidecar/locksidecar/cache"

// Snapshot is the whole state of a daemon, besides its descriptors.
type Snapshot struct {
	Engine []byte
	Stores map[string][]byte // the state that a store's Mover left, by the store's name
	Conns  []Conn
}

// Conn is the state of a connection. The engine's snapshot has the state of its session.
type Conn struct {
	Input   []byte // read from the client but not handled
	Unsent  []byte // taken from the outbox but not written
	Watched bool   // a descriptor of the client's process follows the connection's
}

// Encode returns the snapshot in its binary form.
func (s *Snapshot) Encode() []byte {
	c := &cache.Coder{B: make([]byte, 0, len(s.Engine)+1<<16)}
	s.code(c)
	return c.B
}

// DecodeSnapshot reads what Encode has returned.
func DecodeSnapshot(b []byte) (*Snapshot, error) {
	s, c := &Snapshot{Stores: make(map[string][]byte)}, &cache.Coder{B: b, Reading: true}
	s.code(c)
	return s, c.Err
}

// code writes or reads the snapshot.
func (s *Snapshot) code(c *cache.Coder) {
	c.Bytes(&s.Engine)
	var names []string
	for name := range s.Stores {
		names = append(names, name)
	}
	cache.List(c, &names, func(name *string) {
		c.String(name)
		state := s.Stores[*name]
		c.Bytes(&state)
		s.Stores[*name] = state
	})
	cache.List(c, &s.Conns, func(k *Conn) {
		c.Bytes(&k.Input)
		c.Bytes(&k.Unsent)
		c.Bool(&k.Watched)
	})
}
