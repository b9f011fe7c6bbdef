package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// Each kind of refusal has its exit code, and the text of the answer is made harmless.
func TestRefusalsOfTheAdminSocket(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		code   int
		says   string
	}{
		{http.StatusForbidden, "only root\x1b[2J\n", exitDenied, "only root\ufffd[2J"},
		{http.StatusForbidden, `{"error": "only root\u001b[2J"}`, exitDenied, "only root\ufffd[2J"},
		{http.StatusNotFound, `{"error": "nobody holds it"}`, exitNotHeld, "nobody holds it"},
		{http.StatusBadRequest, "limit is a number", exitUsage, "limit is a number"},
		{http.StatusNotFound, "404 page not found", exitUnavailable, "older than this program"},
		{http.StatusInternalServerError, "", exitUnavailable, "500 Internal Server Error"},
		{http.StatusOK, "<html>", exitUnavailable, "read the daemon's answer"},
	} {
		socket := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", admin.Socket(socket))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		server.Listener.Close()
		server.Listener = ln
		server.Start()
		a := newAdminClient(socket)
		_, err = a.view(t.Context(), engine.ViewQuery{})
		var e *exitError
		if !errors.As(err, &e) || e.code != c.code || !strings.Contains(e.Error(), c.says) ||
			strings.Contains(e.Error(), "\x1b") {
			t.Errorf("%d %q: %v", c.status, c.body, err)
		}
		a.Close()
		server.Close()
	}
}
