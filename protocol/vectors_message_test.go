package protocol

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

func grantOf(l []any) Grant {
	return Grant{Fence: uint64(number(l[0])), Left: uint64(number(l[1])),
		Deadline: uint64(number(l[2])),
		Count:    uint64(number(l[3])), End: uint64(number(l[4])), Flags: uint64(number(l[5]))}
}

// reply builds the value that read must return, from a vector's fields.
func (v *vector) reply() any {
	if v.num("code") != 0 {
		f := failure{v.str("text"), -1}
		for _, name := range []string{"left", "index"} {
			if v.fields[name] != nil {
				f.detail = v.num(name)
			}
		}
		return f
	}
	switch Op(v.num("to")) {
	case OpHello:
		w := Welcome{Version: v.uint("version"), Session: v.uint("session"), Now: v.uint("now"),
			MaxFrame: v.uint("max_frame"), MinTTL: v.uint("min_ttl"), DefaultTTL: v.uint("default_ttl"),
			MaxTTL: v.uint("max_ttl"), Watch: Watch(v.num("watch")), Daemon: v.str("daemon")}
		for _, n := range v.list("namespaces") {
			l := n.([]any)
			ns := Namespace{Prefix: l[0].(string), Store: l[1].(string), Safety: l[2].(string)}
			if len(l) > 3 {
				ns.Heartbeat = uint64(number(l[3]))
			}
			w.Namespaces = append(w.Namespaces, ns)
		}
		return w
	case OpAcquire, OpRenew, OpDowngrade:
		return Grant{v.uint("fence"), v.uint("left"), v.uint("deadline"), v.uint("count"), v.uint("end"),
			v.uint("flags")}
	case OpAcquireAny:
		return grantAt{Grant{v.uint("fence"), v.uint("left"), v.uint("deadline"), v.uint("count"),
			v.uint("end"), v.uint("flags")}, v.uint("index")}
	case OpAcquireMany:
		var gs []Grant
		for _, g := range v.list("grants") {
			gs = append(gs, grantOf(g.([]any)))
		}
		return gs
	case OpRelease:
		return v.uint("count")
	case OpCancel:
		return v.uint("found")
	case OpPing:
		return v.uint("now")
	case OpForceUnlock:
		return v.uint("ended")
	case OpInspect:
		return State{uint8(v.num("held")), Mode(v.num("mode")), v.uint("holders"),
			v.uint("waiters"), v.num("left"),
			v.uint("fence"), holdersOf(v.list("by"))}
	case OpReleaseMany:
		var cs []Code
		for _, c := range v.list("codes") {
			cs = append(cs, Code(number(c)))
		}
		return cs
	case OpList:
		p := page{Next: v.str("next")}
		for _, r := range v.list("rows") {
			l := r.([]any)
			u := func(i int) uint64 { return uint64(number(l[i])) }
			p.Rows = append(p.Rows, Row{l[0].(string), Mode(u(1)), u(2), u(3), u(4), number(l[5]), u(6),
				u(7), l[8].(string), u(6) == 0 && u(2) > 0, 0})
			if last := &p.Rows[len(p.Rows)-1]; last.Detached {
				last.UID = number(l[9])
			}
		}
		return p
	case OpStored:
		p := storedPage{Next: v.str("next")}
		for _, r := range v.list("rows") {
			l := r.([]any)
			s := func(i int) string { return l[i].(string) }
			p.Rows = append(p.Rows, StoredRow{s(0), s(1), s(2), Mode(number(l[3])), s(4),
				uint8(number(l[5])),
				number(l[6]), number(l[7]), uint64(number(l[8])), nil})
			if len(l) > 9 {
				p.Rows[len(p.Rows)-1].By = holdersOf(l[9].([]any))
			}
		}
		return p
	}
	return nil
}

// storedPage is what Stored returns.
type storedPage struct {
	Rows []StoredRow
	Next string
}

// grantAt is what GrantOf returns.
type grantAt struct {
	Grant Grant
	Index uint64
}

type page struct {
	Rows []Row
	Next string
}

type failure struct {
	text   string
	detail int64
}

// read decodes the reply to op with the method for it.
func read(m *Message, to Op) (any, error) {
	if m.Code != OK {
		text, detail, err := m.Error()
		return failure{text, detail}, err
	}
	switch to {
	case OpHello:
		return m.Welcome()
	case OpAcquire, OpRenew, OpDowngrade:
		return m.Grant()
	case OpAcquireAny:
		g, index, err := m.GrantOf()
		return grantAt{g, index}, err
	case OpAcquireMany:
		return m.Grants()
	case OpRelease, OpCancel, OpPing, OpForceUnlock:
		return m.Number()
	case OpInspect:
		return m.State()
	case OpReleaseMany:
		return m.Codes()
	case OpList:
		rows, next, err := m.List()
		return page{rows, next}, err
	case OpStored:
		rows, next, err := m.Stored()
		return storedPage{rows, next}, err
	}
	return nil, fmt.Errorf("no reply to op %d", to)
}

// write encodes a value that read returns.
func write(id uint64, c Code, to Op, x any) []byte {
	switch x := x.(type) {
	case failure:
		if to == OpAcquireMany && x.detail >= 0 {
			return AppendManyError(nil, id, c, x.text, uint64(x.detail))
		}
		return AppendError(nil, id, c, x.text, x.detail)
	case Welcome:
		return AppendWelcome(nil, id, &x)
	case Grant:
		return AppendGrant(nil, id, &x)
	case grantAt:
		return AppendGrantOf(nil, id, &x.Grant, x.Index)
	case []Grant:
		return AppendGrants(nil, id, x)
	case uint64:
		switch to {
		case OpRelease:
			return AppendReleased(nil, id, x)
		case OpCancel:
			return AppendCanceled(nil, id, x == 1)
		case OpForceUnlock:
			return AppendUnlocked(nil, id, x)
		}
		return AppendPong(nil, id, x)
	case State:
		return AppendInspected(nil, id, &x)
	case []Code:
		return AppendCodes(nil, id, x)
	case storedPage:
		return AppendStored(nil, id, x.Rows, x.Next)
	case page:
		return AppendList(nil, id, x.Rows, x.Next)
	}
	return nil
}

func TestVectorsReplies(t *testing.T) {
	check := func(t *testing.T, v *vector) {
		m, err := DecodeMessage(cutOne(t, v.frame))
		if err != nil {
			t.Fatal(err)
		}
		if m.Code != Code(v.num("code")) || m.ID != v.uint("id") {
			t.Errorf("code %d, id %d", m.Code, m.ID)
		}
		got, err := read(&m, Op(v.num("to")))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(v.reply(), got, cmp.AllowUnexported(failure{})); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
	eachVector(t, "replies.txt", func(t *testing.T, v *vector) {
		check(t, v)
		if got := write(v.uint("id"), Code(v.num("code")), Op(v.num("to")),
			v.reply()); !bytes.Equal(got, v.frame) {
			t.Errorf("encode\n got %x\nwant %x", got, v.frame)
		}
		crossCheck(t, v.payload(), true)
	})
	eachVector(t, "replies-accept.txt", check)
}

// push decodes a push into its fields, in their order.
func push(m *Message) (fields []any, err error) {
	switch m.Event {
	case EventLost:
		k, o, f, r, err := m.Lost()
		return []any{k, int64(o), int64(f), int64(r)}, err
	case EventKeepalive:
		u, l, err := m.Keepalive()
		return []any{int64(u), int64(l)}, err
	case EventGoingAway:
		d, s, err := m.GoingAway()
		return []any{int64(d), s}, err
	case EventFatal:
		c, s, err := m.Fatal()
		return []any{int64(c), s}, err
	case EventReleaseFailed:
		k, o, f, c, s, err := m.ReleaseFailed()
		return []any{k, int64(o), int64(f), int64(c), s}, err
	}
	return nil, nil
}

func (v *vector) push() []any {
	switch Event(v.num("event")) {
	case EventLost:
		return []any{v.str("key"), v.num("owner"), v.num("fence"), v.num("reason")}
	case EventKeepalive:
		return []any{v.num("until"), v.num("left")}
	case EventGoingAway:
		return []any{v.num("drain"), v.str("text")}
	case EventFatal:
		return []any{v.num("code"), v.str("text")}
	case EventReleaseFailed:
		return []any{v.str("key"), v.num("owner"), v.num("fence"), v.num("code"), v.str("text")}
	}
	return nil
}

func TestVectorsPushes(t *testing.T) {
	check := func(t *testing.T, v *vector) {
		m, err := DecodeMessage(cutOne(t, v.frame))
		if err != nil {
			t.Fatal(err)
		}
		if m.ID != 0 || m.Event != Event(v.num("event")) {
			t.Errorf("event %d, id %d", m.Event, m.ID)
		}
		got, err := push(&m)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(v.push(), got); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
	eachVector(t, "pushes.txt", func(t *testing.T, v *vector) {
		check(t, v)
		var got []byte
		switch Event(v.num("event")) {
		case EventLost:
			got = AppendLost(nil, v.str("key"), v.uint("owner"), v.uint("fence"), Reason(v.num("reason")))
		case EventKeepalive:
			got = AppendKeepalive(nil, v.uint("until"), v.uint("left"))
		case EventGoingAway:
			got = AppendGoingAway(nil, v.uint("drain"), v.str("text"))
		case EventFatal:
			got = AppendFatal(nil, Code(v.num("code")), v.str("text"))
		case EventReleaseFailed:
			got = AppendReleaseFailed(nil, v.str("key"), v.uint("owner"), v.uint("fence"),
				Code(v.num("code")), v.str("text"))
		}
		if !bytes.Equal(got, v.frame) {
			t.Errorf("encode\n got %x\nwant %x", got, v.frame)
		}
		crossCheck(t, v.payload(), true)
	})
	eachVector(t, "pushes-accept.txt", check)
}

func TestVectorsBadReplies(t *testing.T) {
	eachVector(t, "bad-replies.txt", func(t *testing.T, v *vector) {
		p, _, _, err := Cut(v.frame, DefaultMaxFrame)
		if err != nil {
			return
		}
		m, err := DecodeMessage(p)
		switch {
		case err != nil:
		case m.ID == 0:
			_, err = push(&m)
		default:
			_, err = read(&m, Op(v.num("to")))
		}
		if err == nil {
			t.Errorf("decoded")
		}
	})
}

// crossCheck compares the decoder with the msgpack library: the library reads the same values and,
// if canonical is true, writes the same bytes.
func crossCheck(t *testing.T, payload []byte, canonical bool) {
	t.Helper()
	d := msgpack.NewDecoder(bytes.NewReader(payload))
	d.UseLooseInterfaceDecoding(true)
	x, err := d.DecodeInterface()
	if err != nil {
		if canonical {
			t.Errorf("the library cannot read it: %v", err)
		}
		return // such as ext types that are not registered, or maps
	}
	r := reader{payload}
	if err := equal(&r, x); err != nil || len(r.b) != 0 {
		t.Errorf("read differently by the library: %v (%v), %d bytes left", err, x, len(r.b))
	}
	if !canonical {
		return
	}
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	if err := e.Encode(x); err != nil || !bytes.Equal(b.Bytes(), payload) {
		t.Errorf("written differently by the library: %v\n got %x\nwant %x", err, b.Bytes(), payload)
	}
}

// equal reads the next value with the reader of this package and compares it with x.
func equal(r *reader, x any) error {
	var got any
	var err error
	switch x := x.(type) {
	case []any:
		n, err := r.array()
		if err != nil || n != len(x) {
			return fmt.Errorf("array of %d, want %d: %v", n, len(x), err)
		}
		for _, y := range x {
			if err := equal(r, y); err != nil {
				return err
			}
		}
		return nil
	case string:
		if len(r.b) > 0 && r.b[0] >= 0xc4 && r.b[0] <= 0xc6 {
			return r.skip(1) // bin, which the library also converts to a string
		}
		var s []byte
		s, err = r.str()
		got = string(s)
	case int64:
		got, err = r.int()
	case uint64:
		got, err = r.uint()
	default:
		return r.skip(1)
	}
	if err != nil || got != x {
		return fmt.Errorf("%v, want %v: %v", got, x, err)
	}
	return nil
}

// holdersOf converts the holders of a vector.
func holdersOf(list []any) (hs []Holder) {
	for _, x := range list {
		l := x.([]any)
		s := func(i int) string { return l[i].(string) }
		hs = append(hs, Holder{HolderKind(number(l[0])), s(1), s(2), uint64(number(l[3])),
			number(l[4]), number(l[5]),
			number(l[6]), s(7), s(8), uint64(number(l[9])), uint64(number(l[10])), number(l[11]), s(12),
			uint64(number(l[13]))})
	}
	return hs
}
