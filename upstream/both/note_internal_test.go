package both

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/locksidecar/locksidecar/upstream"
)

// memory is a store's note.
type memory struct {
	text    []byte
	version int64
	down    bool
}

func (m *memory) Note(context.Context) ([]byte, int64, error) {
	if m.down {
		return nil, 0, upstream.ErrDown
	}
	return m.text, m.version, nil
}

func (m *memory) SetNote(_ context.Context, text []byte, version int64) (bool, error) {
	if version != m.version {
		return false, nil
	}
	m.text, m.version = text, version+1
	return true, nil
}

// While keys are in two stores, namespaces are added one by one, each by a reload. A reload does
// not change the rules of earlier namespaces. So the note, which each acquire reads, grows with the
// number of namespaces and not with its square.
func TestTheNoteDoesNotGrowWithTheSquareOfReloads(t *testing.T) {
	const n = 100
	keysOf := func(n int) (keys []Keys) {
		rest := Keys{}
		for i := range n {
			rest.Except = append(rest.Except, fmt.Sprintf("tenant%03d:", i))
			keys = append(keys, Keys{Prefix: rest.Except[i]})
		}
		return append(keys, rest)
	}
	cover := func(m *memory, n int) {
		if err := (&order{note: m}).cover(t.Context(), keysOf(n)); err != nil {
			t.Fatal(err)
		}
	}
	once, oneByOne := new(memory), new(memory)
	cover(once, n)
	for i := range n + 1 {
		cover(oneByOne, i)
	}
	if len(oneByOne.text) > 3*len(once.text) {
		t.Errorf("%d bytes after %d reloads, and %d bytes after one", len(oneByOne.text), n,
			len(once.text))
	}
}

// The note cannot be read when a host starts. The host writes its rules before its first grant, and
// refuses locks until it can.
func TestRulesAreWrittenBeforeTheFirstGrant(t *testing.T) {
	all := []Keys{{}}
	m := &memory{down: true}
	before, after := &order{note: m}, &order{note: m, epoch: 1000}
	for _, o := range []*order{before, after} {
		o.coverLater(all)
		if err := o.settle(t.Context()); !errors.Is(err, upstream.ErrDown) {
			t.Error(err)
		}
		if _, errs := o.decide(t.Context(), []bases{{"k", 5, 5}}); errs[0] == nil {
			t.Error("a lock is granted while the note cannot be read")
		}
		if o.checkNote(t.Context(), all) != nil || o.checkNote(t.Context(),
			[]Keys{{Prefix: "x:"}}) == nil {
			t.Error("the note is needed for other keys alone")
		}
		if err := o.cover(t.Context(), all); err != nil {
			t.Errorf("keys that are pending are covered again: %v", err)
		}
		if err := o.cover(t.Context(), []Keys{{Prefix: "x:"}}); err == nil {
			t.Error("keys that are new are covered")
		}
	}
	m.down = false
	for _, c := range []struct {
		o    *order
		base uint64
	}{{before, 5}, {after, 1005}} {
		base, errs := c.o.decide(t.Context(), []bases{{"k", 5, 5}})
		if errs[0] != nil || base[0] != c.base {
			t.Errorf("base %d, want %d: %v", base[0], c.base, errs[0])
		}
		if len(c.o.pending) > 0 || len(c.o.declared) != 1 {
			t.Errorf("pending %v, declared %v", c.o.pending, c.o.declared)
		}
	}
	rules, _, err := readNote(t.Context(), m)
	if err != nil || len(rules) != 2 || rules[0].Epoch != 0 || rules[1].Epoch != 1000 {
		t.Error(rules, err)
	}
}

// downStore is a store that is down.
type downStore struct{ fake }

func (*downStore) Ping(context.Context) error { return upstream.ErrDown }

// orderedStore is a store whose bases are its own order.
type orderedStore struct {
	fake
	memory
}

func (s *orderedStore) Capabilities() upstream.Capabilities { return upstream.Capabilities{Noter: s} }

func (*orderedStore) Info() upstream.Info { return upstream.Info{Name: "ordered"} }

// The new store comes back before the old one. The host writes the rules of its keys there at once.
func TestRulesAreWrittenWhileTheOldStoreIsDown(t *testing.T) {
	st := &orderedStore{memory: memory{down: true}}
	s, err := New(&downStore{}, st, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.CoverLater([]Keys{{}})
	for _, down := range []bool{true, false} {
		st.down = down
		if err := s.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) {
			t.Error(err)
		}
	}
	if rules, _, err := readNote(t.Context(), st); err != nil || len(rules) != 1 {
		t.Error(rules, err)
	}
}

// Keys that contain others have all of their keys. Where the others have no exceptions, contains
// also finds each case.
func TestContains(t *testing.T) {
	words := []string{""} // all words of up to four letters
	for from := 0; len(words[from]) < 4; from++ {
		words = append(words, words[from]+"a", words[from]+"b")
	}
	any := func() (k Keys) {
		k.Prefix = words[rand.N(7)]
		for range rand.N(3) {
			k.Except = append(k.Except, words[1+rand.N(14)])
		}
		return k
	}
	for range 20_000 {
		k, o := any(), any()
		want := true
		for _, w := range words {
			want = want && (!o.has(w) || k.has(w))
		}
		got := k.contains(&o)
		if got && !want {
			t.Fatalf("%+v contains %+v", k, o)
		}
		if !got && want && o.has(o.Prefix) && k.has(o.Prefix) && len(o.Except) == 0 {
			t.Fatalf("%+v does not contain %+v", k, o)
		}
	}
}

// Rules are never removed, but the new store can lose them: an older copy of its data is restored.
// A host that knows a rule obeys it nevertheless, and writes it again for other hosts.
func TestARuleThatTheNewStoreHasLostStillCounts(t *testing.T) {
	m := new(memory)
	old, new := &order{note: m}, &order{note: m, epoch: 1000}
	for _, o := range []*order{old, new} {
		if err := o.cover(t.Context(), []Keys{{}}); err != nil {
			t.Fatal(err)
		}
	}
	base := func(o *order, g bases) uint64 {
		t.Helper()
		b, errs := o.decide(t.Context(), []bases{g})
		if errs[0] != nil {
			t.Fatal(errs[0])
		}
		return b[0]
	}
	if b := base(old, bases{"k", 5, 5}); b != 1005 {
		t.Fatalf("base %d", b)
	}
	restored := memory{text: []byte(`{"moving":[{"prefix":""}]}`), version: 1}
	*m = restored
	if b := base(old, bases{"k", 6, 6}); b != 1006 {
		t.Errorf("base %d after 1005", b)
	}
	if b := base(&order{note: m}, bases{"k", 7, 7}); b != 1007 {
		t.Errorf("base %d after 1006", b)
	}

	// A host writes its own rule again when its session is lost, even if it needs no other rule.
	*m = restored
	(&Store{order: new}).learn(1, upstream.Session{No: 1, Lost: true})
	if err := new.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b := base(&order{note: m}, bases{"k", 8, 8}); b != 1008 {
		t.Errorf("base %d after 1007", b)
	}
}
