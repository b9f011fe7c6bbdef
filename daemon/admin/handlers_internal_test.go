package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// operated is a daemon with one operator.
type operated struct{ Daemon }

const operatorUID = 1001

func (operated) MayUnlock(p *engine.Peer) bool { return p.UID == operatorUID }

func TestUnlockIsForOperators(t *testing.T) {
	core, seen := observer.New(zap.InfoLevel)
	a := &Server{daemon: operated{}, cfg: Config{Log: zap.New(core)}}
	ask := func(uid int) int {
		r := httptest.NewRequest("POST", "/unlock", strings.NewReader(url.Values{"key": {""}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		a.unlock(w, r.WithContext(context.WithValue(r.Context(), peerKey{},
			engine.Peer{PID: 7, UID: uid})))
		return w.Code
	}
	for uid, want := range map[int]int{operatorUID: http.StatusBadRequest,
		54321: http.StatusForbidden, -1: http.StatusForbidden} {
		if got := ask(uid); got != want { // the key is bad: that comes behind who asks
			t.Errorf("uid %d: %d, want %d", uid, got, want)
		}
	}
	if n := seen.FilterField(zap.String("event", "unlock_denied")).Len(); n != 2 {
		t.Errorf("%d are logged as denied", n)
	}
}

// gone is a daemon that cannot unlock anything any more.
type gone struct{ operated }

func (gone) Unlock(string, bool, uint64, engine.Peer) (Unlocked, error) {
	return Unlocked{}, errors.New("another process has taken over")
}

// After a takeover the other process has the hold, so the caller has to repeat the request there.
func TestAnUnlockThatFailsIsAnsweredWith503(t *testing.T) {
	a := &Server{daemon: gone{}, cfg: Config{Log: zap.NewNop()}}
	r := httptest.NewRequest("POST", "/unlock", strings.NewReader(url.Values{"key": {"k"}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	a.unlock(w, r.WithContext(context.WithValue(r.Context(), peerKey{},
		engine.Peer{PID: 7, UID: operatorUID})))
	if w.Code != http.StatusServiceUnavailable ||
		!strings.Contains(w.Body.String(), "repeat the request") {
		t.Errorf("%d, %q", w.Code, w.Body)
	}
}

func TestOnlyOurOwnNamesByTCP(t *testing.T) {
	for _, tc := range []struct {
		listen, host string
		ours         bool
	}{
		{"127.0.0.1", "127.0.0.1:9402", true},
		{"127.0.0.1", "localhost:9402", true},
		{"127.0.0.1", "LOCALHOST", true},
		{"127.0.0.1", "[::1]:9402", true},
		{"127.0.0.1", "evil.example:9402", false},
		{"127.0.0.1", "localhost.evil.example", false},
		{"127.0.0.1", "10.0.0.7:9402", false},
		{"127.0.0.1", "", false},
		{"10.0.0.7", "10.0.0.7:9402", true},
		{"db7.example", "DB7.example:9402", true},
		{"0.0.0.0", "10.0.0.7:9402", true},
		{"::", "[fd00::7]:9402", true},
		{"", "10.0.0.7", true},
		{"0.0.0.0", "evil.example", false},
		{"", "evil.example", false},
	} {
		if got := (&Server{host: tc.listen}).isOurs(tc.host); got != tc.ours {
			t.Errorf("listening on %q, asked as %q: %v", tc.listen, tc.host, got)
		}
	}
}
