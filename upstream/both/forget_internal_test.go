package both

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// fake is a store with TTLs. While it is muted, it answers nothing.
type fake struct {
	name  string
	muted bool
}

func (f *fake) Info() upstream.Info {
	return upstream.Info{Name: f.name, Rebase: true, Timeout: time.Second}
}
func (f *fake) Capabilities() (none upstream.Capabilities) { return none }
func (f *fake) Hints() <-chan upstream.Hint                { return nil }
func (f *fake) Sessions() <-chan upstream.Session          { return nil }
func (f *fake) Ping(context.Context) error                 { return nil }
func (f *fake) Close() error                               { return nil }
func (f *fake) Apply(_ context.Context, ops []upstream.Op, rs []upstream.Result) error {
	for i, op := range ops {
		switch {
		case f.muted:
			rs[i] = upstream.Result{Left: -1}
		case op.Kind.Ends():
			rs[i] = upstream.Result{Status: cache.Done}
		default:
			rs[i] = upstream.Result{Status: cache.Granted, Base: 5}
		}
	}
	return nil
}

// The new store hangs for longer than twice the TTL, and the lock table forgets the tokens. A sweep
// forgets them here, but not the token that the table still knows.
func TestASweepForgetsTokensThatTheTableHasForgotten(t *testing.T) {
	s, err := New(&fake{name: "a"}, &fake{name: "b", muted: true}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const tokens = 10
	for token := range uint64(tokens) {
		op := upstream.Op{Kind: cache.OpTry, Key: "k", Token: token, TTL: time.Second}
		r := make([]upstream.Result, 1)
		_ = s.Apply(t.Context(), []upstream.Op{op}, r)
		op.Kind = cache.OpWithdraw
		_ = s.Apply(t.Context(), []upstream.Op{op}, r)
		if !r[0].Expires || !r[0].Partly {
			t.Fatalf("%+v", r[0])
		}
	}
	if n := len(s.tokens); n != tokens {
		t.Fatalf("%d tokens are known, not %d", n, tokens)
	}
	if _, err := s.Sweep(t.Context(), func(_ string, token uint64) bool { return token == 3 }); err != nil {
		t.Fatal(err)
	}
	if n := len(s.tokens); n != 1 {
		t.Errorf("%d tokens are known after the sweep, not 1", n)
	}
}
