package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/both"
)

// silentStore has a note that cannot be read.
type silentStore struct {
	upstream.Store
	asked int
}

func (s *silentStore) Capabilities() upstream.Capabilities { return upstream.Capabilities{Noter: s} }

func (s *silentStore) Note(context.Context) ([]byte, int64, error) {
	s.asked++
	return nil, 0, upstream.ErrDown
}

func (s *silentStore) SetNote(context.Context, []byte, int64) (bool, error) {
	return false, upstream.ErrDown
}

// proposed returns a configuration that has been read.
func proposed(t *testing.T, yaml string) *proposal {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &Main{Env: func(string) (string, bool) { return "", false }}
	p, err := m.load(file, pflag.NewFlagSet("", pflag.ContinueOnError))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A store that does not answer delays a start or a reload once, and not once for each namespace. If
// the store could not be opened, it causes no second delay.
func TestTheNoteOfAStoreIsReadOnce(t *testing.T) {
	p := proposed(t, "namespaces:\n  'a:': {}\n  'b:': {}\n  'c:': {fence_epoch: 7}\n")
	all, st := newOpenStores(zap.NewNop()), &silentStore{}
	for _, d := range p.needs {
		all.open[d.key] = st
	}
	if _, err := all.covered(t.Context(), p, nil); err != nil || st.asked != 1 {
		t.Errorf("it was asked %d times: %v", st.asked, err)
	}

	st.asked = 0
	fresh := make(map[string]opened)
	for _, d := range p.needs {
		fresh[d.key] = opened{lazy: true, missing: true}
	}
	if _, err := all.covered(t.Context(), p, fresh); err != nil || st.asked != 0 {
		t.Errorf("it was asked %d times although it could not be reached: %v", st.asked, err)
	}
}

// notedStore keeps a note. Its bases can or cannot be raised. It does nothing else.
type notedStore struct {
	upstream.Store
	rebase  bool
	down    bool
	written int
	text    []byte
}

func (s *notedStore) Info() upstream.Info {
	return upstream.Info{Name: "noted",
		Rebase: s.rebase}
}
func (*notedStore) Hints() <-chan upstream.Hint       { return nil }
func (*notedStore) Sessions() <-chan upstream.Session { return nil }
func (*notedStore) Close() error                      { return nil }

func (s *notedStore) Capabilities() upstream.Capabilities { return upstream.Capabilities{Noter: s} }

func (s *notedStore) Note(context.Context) ([]byte, int64, error) {
	if s.down {
		return nil, 0, upstream.ErrDown
	}
	return s.text, int64(s.written), nil
}

func (s *notedStore) SetNote(_ context.Context, text []byte, _ int64) (bool, error) {
	s.text = text
	s.written++
	return true, nil
}

// A configuration that is refused changes nothing in the stores. The rules on which hosts with two
// stores agree are written when nothing else can fail.
func TestARefusedConfigurationWritesNothingIntoAStore(t *testing.T) {
	p := proposed(t, "upstream: redis://127.0.0.1:1\nstores:\n  n: {upstream: 'etcd://127.0.0.1:1'}\n  o: {upstream: 'etcd://127.0.0.1:2'}\n"+
		"namespaces:\n  'a:': {both: n}\n  'b:': {both: o}\n")
	refused := errors.New("refused")
	for _, c := range []struct {
		name    string
		down    bool // the new store of the second pair
		take    func(daemon.Serving) error
		written int // to the store of the first pair
	}{
		{"the daemon refuses it", false, func(daemon.Serving) error { return refused }, 0},
		{"another store cannot be read", true, func(s daemon.Serving) error { return s.Commit() }, 0},
		{"it is taken", false, func(s daemon.Serving) error { return s.Commit() }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := newOpenStores(zap.NewNop())
			news := make(map[string]*notedStore)
			for _, d := range p.needs {
				all.needs[d.key] = d
				all.open[d.key] = &notedStore{rebase: true}
				if len(d.plans) == 2 {
					st := &notedStore{down: c.down && d.plans[1].name == "o"}
					news[d.plans[1].name] = st
					pair, err := both.New(&notedStore{rebase: true}, st, 0)
					if err != nil {
						t.Fatal(err)
					}
					all.open[d.key] = pair
				}
			}
			err := all.use(t.Context(), p, c.take)
			if (err == nil) != (c.written == 1) {
				t.Error(err)
			}
			for name, s := range news {
				if s.written != c.written {
					t.Errorf("store %s was written %d times: %s", name, s.written, s.text)
				}
			}
			all.closeAll()
		})
	}
}
