package both

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

// memory is a store's note.
type memory struct {
	text    []byte
	version int64
}

func (m *memory) Note(context.Context) ([]byte, int64, error) { return m.text, m.version, nil }

func (m *memory) SetNote(_ context.Context, text []byte, version int64) (bool, error) {
	if version != m.version {
		return false, nil
	}
	m.text, m.version = text, version+1
	return true, nil
}

// While keys are in two stores, namespaces are added one by one, each by a reload. The rules of the namespaces that were
// there before say the same as after it: the note, which is read with each acquire, grows with the namespaces, and not
// with their square.
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
		t.Errorf("%d bytes after %d reloads, and %d bytes after one", len(oneByOne.text), n, len(once.text))
	}
}

// Keys that contain others have all of their keys. Where the others have no exceptions, contains also finds each case.
func TestContains(t *testing.T) {
	words := []string{""} // all of up to four letters
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
