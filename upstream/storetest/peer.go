package storetest

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// The drivers' own tests use the functions below, too.

// Apply carries out a batch within the time that the store sets itself.
func Apply(s upstream.Store, ops ...upstream.Op) ([]upstream.Result, error) {
	results := make([]upstream.Result, len(ops))
	ctx, cancel := context.WithTimeout(context.Background(), s.Info().Timeout)
	defer cancel()
	err := s.Apply(ctx, ops, results)
	return results, err
}

// Want fails t unless r has the status st and the fields that belong to it. A grant has a base. A
// result has an error if and only if it is Refused or Unknown.
func Want(t testing.TB, r upstream.Result, st cache.Status) {
	t.Helper()
	if r.Status != st {
		t.Fatalf("it is %v (error %v), not %v", r.Status, r.Err, st)
	}
	if st == cache.Granted && (r.Base == 0 || r.Base > cache.MaxBase) {
		t.Fatalf("granted with base %d", r.Base)
	}
	if (st == cache.Refused || st == cache.Unknown) != (r.Err != nil) {
		t.Fatalf("%v comes with error %v", st, r.Err)
	}
}

// Opened opens a store whose server works. It tries again after an error, because a busy machine
// may stall for longer than the timeout of some tests.
func Opened[S any](t testing.TB, open func() (S, error)) S {
	t.Helper()
	for end := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		s, err := open()
		if err == nil {
			return s
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// Eventually polls until ok returns true. It fails t if that takes longer than bound, which only a
// fault does. Its pauses grow, so that it leaves the processors to other tests.
func Eventually(t testing.TB, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); {
		waited := time.Since(begin)
		if waited > bound {
			t.Fatalf("it never comes true that %s", what)
		}
		time.Sleep(min(max(waited/20, 2*time.Millisecond), 25*time.Millisecond))
	}
}

// Proxy is the proxy between a store and its server.
type Proxy interface {
	Addr() string
	Refuse(on bool) error // whether new connections are refused
}

// GivesUpAtOnce lets the address of px lead to the server at addr. The connections of s through px
// are stalled. It fails t if more than one ping fails then, because s must not try its connections
// one after the other.
func GivesUpAtOnce(t testing.TB, s upstream.Store, px Proxy, addr string) {
	t.Helper()
	if err := px.Refuse(true); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", px.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", addr)
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(s, c); _ = s.Close() }()
			go func() { _, _ = io.Copy(c, s); _ = c.Close() }()
		}
	}()
	failed := 0
	for end := time.Now().Add(bound); s.Ping(t.Context()) != nil && time.Now().Before(end); {
		failed++
	}
	if failed > 1 {
		t.Errorf("%d pings have failed", failed)
	}
}
