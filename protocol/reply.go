package protocol

import (
	"errors"
	"fmt"
)

// Welcome is the answer to a hello.
type Welcome struct {
	Version    uint64 // the highest version that both sides speak
	Session    uint64
	Now        uint64 // the daemon's clock, milliseconds
	MaxFrame   uint64 // limit of a payload, in bytes
	MinTTL     uint64 // milliseconds; also DefaultTTL and MaxTTL
	DefaultTTL uint64
	MaxTTL     uint64
	Watch      Watch
	Namespaces []Namespace
	Daemon     string // the daemon's version, for people
}

// Watch says how the daemon notices that a client's process has ended.
type Watch uint8

// The ways in which the daemon notices the end of a client.
const (
	WatchSocket  Watch = 0 // by the end of the connection only
	WatchProcess Watch = 1 // by the process, even while its child keeps the socket open
)

// Namespace is one route from a key prefix to a store.
type Namespace struct {
	Prefix, Store, Safety string
	// Heartbeat is in milliseconds. A session that holds a key there and sends nothing for so long
	// loses it. 0 means that there is no such rule.
	Heartbeat uint64
}

// Grant is the success of acquire, renew and downgrade, and with an index of acquire-any.
type Grant struct {
	Fence    uint64
	Left     uint64 // milliseconds of stated validity, rounded down
	Deadline uint64 // when the validity ends, in milliseconds of the daemon's clock
	Count    uint64 // how often the owner has acquired it
	End      uint64 // when the hold ends at the latest, on the daemon's clock; 0 for never
	Flags    uint64
}

// Where a key is held, in the replies to inspect and list.
const (
	HeldNot   = 0 // free, as far as the store knows
	HeldHere  = 1 // by a client of this daemon
	HeldThere = 2 // by another host, or a plain locker
)

// State is the answer to an inspect.
type State struct {
	Held    uint8
	Mode    Mode
	Holders uint64   // on this host
	Waiters uint64   // on this host
	Left    int64    // milliseconds, -1 when not known
	Fence   uint64   // 0 unless held here
	By      []Holder // the holders, if FlagHolders asked for them and the daemon can name them
}

// Row is one line of a list: a key that this host holds or waits for.
type Row struct {
	Key              string
	Mode             Mode
	Holders, Waiters uint64
	Fence            uint64 // the newest
	Left             int64  // milliseconds, -1 when not held
	Session          uint64 // of one holder; 0 when only waited for
	PID              uint64 // of that holder's process; 0 when not known
	Client           string // the holder's name and label
	Detached         bool   // no session has the hold
	UID              int64  // of the user of a detached hold, -1 when not known; 0 for another hold
}

// StoredRow is a lock as a store knows it.
type StoredRow struct {
	Key     string
	Store   string // the store's name in the daemon's configuration
	Name    string // the lock's name in the store
	Mode    Mode
	Holder  string   // who holds it, in the store's terms
	Whose   uint8    // a constant such as StoredElsewhere
	Left    int64    // milliseconds until it ends by itself, -1 when not known
	Waiters int64    // in the store's queue, -1 when not known
	Base    uint64   // base of the fence, 0 when not known
	By      []Holder // the holder, if the daemon can name it
}

// Message is one decoded frame from the daemon. It is a reply if ID is not 0, and otherwise a push.
// The caller reads the fields with the method for the request or event.
type Message struct {
	Code  Code // of a reply
	Event Event
	ID    uint64
	f     fields
}

// DecodeMessage reads the head of one payload from the daemon. The message
// points into the payload.
func DecodeMessage(payload []byte) (Message, error) {
	r := reader{payload}
	n, err := r.array()
	if err != nil || n < 2 {
		return Message{}, fmt.Errorf("message is not an array of code and id: %w", errType)
	}
	c, err := r.uint()
	if err != nil || c > 255 {
		return Message{}, fmt.Errorf("code: %w", errRange)
	}
	id, err := r.uint()
	if err != nil {
		return Message{}, fmt.Errorf("id: %w", err)
	}
	return Message{Code: Code(c), Event: Event(c), ID: id, f: fields{r, n - 2}}, nil
}

// Done skips the fields that were not read. It fails if they are malformed or nested too deeply, or
// if bytes follow them. Every message must be read to its end, because a malformed rest makes the
// whole message invalid.
func (m *Message) Done() error {
	for m.f.next() {
		if err := m.f.skip(1); err != nil {
			return err
		}
	}
	if len(m.f.b) > 0 {
		return errTrailing
	}
	return nil
}

// get reads the next fields in order: uint64s, int64s and strings.
func (m *Message) get(dst ...any) (err error) {
	for _, d := range dst {
		if !m.f.next() {
			return errTruncated
		}
		switch d := d.(type) {
		case *uint64:
			*d, err = m.f.uint()
		case *int64:
			*d, err = m.f.int()
		case *string:
			var s []byte
			s, err = m.f.str()
			*d = string(s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Number reads the one number of a released, canceled, pong or unlocked reply.
func (m *Message) Number() (v uint64, err error) {
	if !m.f.next() {
		return 0, errTruncated
	}
	return m.f.uint()
}

// Grant reads a grant. It does not allocate.
func (m *Message) Grant() (g Grant, err error) {
	for _, p := range [...]*uint64{&g.Fence, &g.Left, &g.Deadline, &g.Count, &g.End, &g.Flags} {
		if *p, err = m.Number(); err != nil {
			return g, err
		}
	}
	return g, nil
}

// GrantOf reads the success of an acquire-any: a grant, and the index of the key in the request.
func (m *Message) GrantOf() (g Grant, index uint64, err error) {
	if g, err = m.Grant(); err == nil {
		index, err = m.Number()
	}
	return g, index, err
}

// Error reads a failure: its text and its detail. For Busy the detail is the milliseconds left (-1
// when not known). For a failed acquire-many it is the index of the key, or -1 if the request was
// refused as a whole.
func (m *Message) Error() (msg string, detail int64, err error) {
	if err = m.get(&msg); err != nil || m.f.left == 0 {
		return msg, -1, err
	}
	before := m.f
	if err = m.get(&detail); errors.Is(err, errType) {
		m.f = before        // so that Done skips the field
		return msg, -1, nil // a field of a later version
	}
	return msg, detail, err
}

// Welcome reads the answer to a hello.
func (m *Message) Welcome() (w Welcome, err error) {
	var watch uint64
	err = m.get(&w.Version, &w.Session, &w.Now, &w.MaxFrame, &w.MinTTL, &w.DefaultTTL,
		&w.MaxTTL, &watch)
	if err != nil {
		return w, err
	}
	w.Watch = Watch(min(watch, 255))
	err = m.entries(3, func() error {
		var n Namespace
		err := m.get(&n.Prefix, &n.Store, &n.Safety)
		if err == nil && m.f.left > 0 {
			err = m.get(&n.Heartbeat)
		}
		w.Namespaces = append(w.Namespaces, n)
		return err
	})
	if err != nil {
		return w, err
	}
	err = m.get(&w.Daemon)
	return w, err
}

// entries reads an array of arrays with at least width fields each.
func (m *Message) entries(width int, one func() error) error {
	if !m.f.next() {
		return errTruncated
	}
	n, err := m.f.array()
	if err != nil {
		return err
	}
	outer := m.f.left
	for range n {
		k, err := m.f.array()
		if err != nil {
			return err
		}
		if k < width {
			return errTruncated
		}
		m.f.left = k
		if err := one(); err != nil {
			return err
		}
		for m.f.next() {
			if err := m.f.skip(3); err != nil {
				return err
			}
		}
	}
	m.f.left = outer
	return nil
}

// Grants reads the success of an acquire-many.
func (m *Message) Grants() (gs []Grant, err error) {
	err = m.entries(6, func() error {
		g, err := m.Grant()
		gs = append(gs, g)
		return err
	})
	return gs, err
}

// Codes reads the success of a release-many.
func (m *Message) Codes() (cs []Code, err error) {
	if !m.f.next() {
		return nil, errTruncated
	}
	n, err := m.f.array()
	if err != nil {
		return nil, err
	}
	for range n {
		v, err := m.f.uint()
		if err != nil {
			return nil, err
		}
		c, err := small(v)
		if err != nil {
			return nil, err
		}
		cs = append(cs, Code(c))
	}
	return cs, nil
}

// small refuses a number that does not fit into a byte. Otherwise the code 256 would be read as ok.
func small(v uint64) (uint8, error) {
	if v > 255 {
		return 0, errRange
	}
	return uint8(v), nil
}

// State reads the success of an inspect.
func (m *Message) State() (s State, err error) {
	var held, mode uint64
	if err = m.get(&held, &mode, &s.Holders, &s.Waiters, &s.Left, &s.Fence); err != nil {
		return s, err
	}
	if s.Held, err = small(held); err != nil {
		return s, err
	}
	k, err := small(mode)
	if s.Mode = Mode(k); err != nil {
		return s, err
	}
	s.By, err = m.holders()
	return s, err
}

// List reads one page of a list, and the position of the next page.
func (m *Message) List() (rows []Row, next string, err error) {
	err = m.entries(9, func() error {
		var r Row
		var mode uint64
		err := m.get(&r.Key, &mode, &r.Holders, &r.Waiters, &r.Fence, &r.Left, &r.Session,
			&r.PID, &r.Client)
		if err != nil {
			return err
		}
		if r.Detached = r.Session == 0 && r.Holders > 0; r.Detached {
			r.UID = -1
		}
		if uid := int64(-1); m.f.left > 0 {
			if err := m.get(&uid); err != nil {
				return err
			}
			if r.Detached {
				r.UID = uid
			}
		}
		k, err := small(mode)
		r.Mode = Mode(k)
		rows = append(rows, r)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	err = m.get(&next)
	return rows, next, err
}

// Stored reads the answer to a stored request: a page, and the position of the next one.
func (m *Message) Stored() (rows []StoredRow, next string, err error) {
	err = m.entries(9, func() error {
		var r StoredRow
		var mode, whose uint64
		err := m.get(&r.Key, &r.Store, &r.Name, &mode, &r.Holder, &whose, &r.Left, &r.Waiters, &r.Base)
		if err != nil {
			return err
		}
		k, err := small(mode)
		if r.Mode, r.Whose = Mode(k), uint8(min(whose, 255)); err != nil {
			return err
		}
		r.By, err = m.holders()
		rows = append(rows, r)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	err = m.get(&next)
	return rows, next, err
}

// Lost reads a lost push.
func (m *Message) Lost() (key string, owner, fence uint64, r Reason, err error) {
	var reason uint64
	err = m.get(&key, &owner, &fence, &reason)
	return key, owner, fence, Reason(min(reason, uint64(LostUnconfirmed)-1)), err
}

// Keepalive reads a keepalive. until is the time on the daemon's clock until which every hold not
// reported lost is valid. left is how far away that was when the push was sent. Both are in
// milliseconds.
func (m *Message) Keepalive() (until, left uint64, err error) {
	err = m.get(&until, &left)
	return until, left, err
}

// GoingAway reads a going-away push. drain is the time in milliseconds after which all holds are
// lost.
func (m *Message) GoingAway() (drain uint64, msg string, err error) {
	err = m.get(&drain, &msg)
	return drain, msg, err
}

// ReleaseFailed reads a release-failed push: the quiet release of this hold has failed.
func (m *Message) ReleaseFailed() (key string, owner, fence uint64, c Code, msg string, err error) {
	var code uint64
	err = m.get(&key, &owner, &fence, &code, &msg)
	return key, owner, fence, Code(min(code, 255)), msg, err
}

// Fatal reads a fatal push.
func (m *Message) Fatal() (c Code, msg string, err error) {
	var code uint64
	err = m.get(&code, &msg)
	return Code(min(code, 255)), msg, err
}
