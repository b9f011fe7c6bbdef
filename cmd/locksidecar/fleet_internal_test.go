package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
)

// silentStore has a note that nobody can read.
type silentStore struct {
	upstream.Store
	asked int
}

func (s *silentStore) Note(context.Context) ([]byte, int64, error) {
	s.asked++
	return nil, 0, upstream.ErrDown
}

func (s *silentStore) SetNote(context.Context, []byte, int64) (bool, error) {
	return false, upstream.ErrDown
}

// A store that does not answer delays a start or a reload once, and not once for each namespace.
func TestTheNoteOfAStoreIsReadOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("namespaces:\n  'a:': {}\n  'b:': {}\n  'c:': {fence_epoch: 7}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &Main{Env: func(string) (string, bool) { return "", false }}
	p, err := m.load(file, pflag.NewFlagSet("", pflag.ContinueOnError))
	if err != nil {
		t.Fatal(err)
	}
	f, st := newFleet(zap.NewNop()), &silentStore{}
	for _, d := range p.needs {
		f.open[d.key] = st
	}
	if err := f.cover(t.Context(), p); err != nil || st.asked != 1 {
		t.Errorf("it was asked %d times: %v", st.asked, err)
	}
}
