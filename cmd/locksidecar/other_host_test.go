package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/html"

	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// output returns what a command prints. The command has to end with the exit code code.
func (h *host) output(code int, args ...string) (out, err string) {
	h.t.Helper()
	p := h.run(args...)
	out = p.rest()
	p.ends(code)
	return out, p.err.String()
}

// htmlPage returns the text of each cell of the page at the admin socket, by the cell's name.
func (h *host) htmlPage() map[string][]string {
	h.t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", admin.Socket(h.socket))
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, "http://localhost/", nil)
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		h.t.Fatalf("%s, %v: %s", resp.Status, err, b)
	}
	root, err := html.Parse(strings.NewReader(string(b)))
	if err != nil {
		h.t.Fatal(err)
	}
	cells := map[string][]string{}
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			if a.Key != "data-name" {
				continue
			}
			var text strings.Builder
			for d := range n.Descendants() {
				if d.Type == html.TextNode {
					text.WriteString(d.Data)
				}
			}
			cells[a.Val] = append(cells[a.Val], strings.Join(strings.Fields(text.String()), " "))
		}
	}
	return cells
}

// Every view of a host names the holder of a lock on another host, and for how long that host has
// held it. The same is true of a semaphore, and of readers.
func TestEveryViewNamesAHolderOnAnotherHost(t *testing.T) {
	server := testserver.StartRedis(t)
	first := newHost(t, "--upstream", server.URL()+"?"+patient, "--host-name", "web-1")
	second := newHost(t, "--upstream", server.URL()+"?"+patient, "--host-name", "web-2")
	const since = `[0-9.]+(ms|s|m[0-9]+s)`
	for _, flags := range [][]string{nil, {"-s"}, {"-c", "1"}} {
		holder := first.lock(flags, "echo has it; read x; exit 0")
		holder.line()
		wants := flags
		if len(flags) == 1 { // only a writer makes readers wait
			wants = nil
		}
		eventually(t, "a refused try names the holder", func() bool { // after web-1 has registered
			_, said := second.output(exitTryAgain, append(append([]string{"lock", "-n"}, wants...), "k",
				"--", "true")...)
			return regexp.MustCompile(` held by web-1, acquired ` + since + ` ago`).MatchString(said)
		})

		waiter := second.lock(wants, "true")
		row := regexp.MustCompile(`(?m)^k +[a-z]+ +1 .* locksidecar lock/sh +web-1 for ` + since + `$`)
		eventually(t, "waiters names the holder", func() bool {
			out, _ := second.output(0, "waiters")
			return row.MatchString(out)
		})
		out, _ := second.output(0, "waiters", "-o", "json")
		if !strings.Contains(out, `"host": "web-1"`) || !strings.Contains(out, `"behind": null`) {
			t.Errorf("%q: waiters -o json: %s", flags, out)
		}
		eventually(t, "a round of top names the holder", func() bool {
			out, _ := second.output(0, "top", "-n", "1")
			return regexp.MustCompile(`(?m)^k .* locksidecar lock/sh .* web-1 for ` + since +
				` `).MatchString(out)
		})
		behind := regexp.MustCompile(`^web-1 for .+$`)
		eventually(t, "the page names the holder", func() bool {
			cells := second.htmlPage()["Held by"]
			return len(cells) == 1 && behind.MatchString(cells[0])
		})
		holder.letGo()
		holder.ends(0)
		waiter.ends(0)
	}

	// If the lock, or the semaphore of the same name, is on another host, a forced unlock names that
	// host.
	sem := first.lock([]string{"-c", "1"}, "echo has it; read x; exit 0")
	sem.line()
	if _, said := second.output(exitNotHeld, "unlock", "--force", "k"); !strings.Contains(said,
		`nobody holds the lock "k" on this host; there is a `+
			"semaphore of this name, and permits of it are held on another host: 'locksidecar who --semaphore k' names it\n") {
		t.Errorf("a semaphore on another host: %s", said)
	}
	lock := first.lock(nil, "echo has it; read x; exit 0")
	lock.line()
	if _, said := second.output(exitNotHeld, "unlock", "--force", "k"); !strings.HasSuffix(said,
		"; 'locksidecar who k' names a holder on another host\n") {
		t.Errorf("a lock on another host: %s", said)
	}
	for _, p := range []*proc{sem, lock} {
		p.letGo()
		p.ends(0)
	}

	// The holder is also shown on a terminal of 80 columns.
	holder := first.lock(nil, "echo has it; read x; exit 0")
	holder.line()
	waiter := second.lock(nil, "true")
	second.waitFor(0, 1)
	modes := cookedModes(t)
	c := second.console(80, 24, nil, "locksidecar", "top", "--interval", "100ms")
	c.sees("waiting 1", "BEHIND", "locksidecar lock/sh", "web-1 for ")
	c.send("w")
	c.sees("PLACE", "locksidecar lock/sh", "web-1 for ")
	c.send("q")
	c.ends(0, modes)
	holder.letGo()
	holder.ends(0)
	waiter.ends(0)
	for _, h := range []*host{first, second} {
		h.daemon.signal(syscall.SIGTERM)
		h.daemon.ends(0)
	}
}
