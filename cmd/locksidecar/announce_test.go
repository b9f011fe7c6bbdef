package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal/vt"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// freeAddr returns an address of this host that nobody listens on.
func freeAddr(t testing.TB) string {
	t.Helper()
	return fmt.Sprint("127.0.0.1:", testserver.ReservePort(t))
}

// isPage checks that a URL is the daemon's page.
func isPage(t testing.TB, url string) {
	t.Helper()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK ||
		!strings.Contains(string(b), "<h2 id=\"h-waiters\">") {
		t.Errorf("%s: %s, %v: %s", url, resp.Status, err, b)
	}
}

// A daemon states the address of its page when it begins to serve: in a sentence on a terminal, and
// otherwise in the field page of the event "serving".
func TestTheAddressOfThePageIsStatedAtTheStart(t *testing.T) {
	const sentence = "Open this page in a browser to see locks, holders and stores: "
	addr := freeAddr(t)
	h := bareHost(t)
	c := h.console(240, 40, nil, "locksidecar", "serve", "--admin-listen", addr)
	c.sees("locksidecar serves at "+h.socket, "Try, in another shell:", sentence+"http://"+addr+"/")
	isPage(t, "http://"+addr+"/")
	c.send(ctrlC)
	(&proc{t: t, cmd: c.cmd, done: c.done, err: &outBuffer{}}).ends(0)

	c = h.console(240, 40, nil, "locksidecar", "serve")
	c.sees("Try, in another shell:", "locksidecar locks --socket "+h.socket)
	c.look(func(s *vt.Terminal) {
		if strings.Contains(s.String(), "browser") {
			t.Error("it names a page that is only on the admin socket")
		}
	})
	c.send(ctrlC)
	(&proc{t: t, cmd: c.cmd, done: c.done, err: &outBuffer{}}).ends(0)

	everywhere := freeAddr(t)
	_, port, err := net.SplitHostPort(everywhere)
	if err != nil {
		t.Fatal(err)
	}
	for listen, want := range map[string]string{"": "", addr: "http://" + addr + "/",
		":" + port: "http://localhost:" + port + "/"} {
		h.serve("--admin-listen", listen)
		log := h.daemon.err.String()
		line := regexp.MustCompile(`(?m)^\{.*"event":"serving".*\}$`).FindString(log)
		var said struct{ Page *string }
		if err := json.Unmarshal([]byte(line), &said); err != nil || said.Page == nil ||
			*said.Page != want || strings.Contains(log, sentence) {
			t.Errorf("--admin-listen %q: page %q, %v:\n%s", listen, want, err, log)
		}
		if want != "" {
			isPage(t, want)
		}
		h.daemon.signal(syscall.SIGTERM)
		h.daemon.ends(0)
	}
}

func TestPageURL(t *testing.T) {
	for listen, want := range map[string]string{
		"": "", "127.0.0.1:9402": "http://127.0.0.1:9402/", "[::1]:9402": "http://[::1]:9402/",
		"host.example:9402": "http://host.example:9402/",
		":9402":             "http://localhost:9402/", "0.0.0.0:9402": "http://localhost:9402/",
		"[::]:9402": "http://localhost:9402/",
	} {
		if got := pageURL(listen); got != want {
			t.Errorf("%q: %q, want %q", listen, got, want)
		}
	}
}

// `systemctl reload` sends the signal that makes the daemon read its configuration again, and every
// text says so. A takeover, which loses the locks in ZooKeeper, has another command.
func TestTextsAgreeWithTheUnitOnReloads(t *testing.T) {
	unit := slurp(t, "deploy/systemd/locksidecar.service")
	found := regexp.MustCompile(`(?m)^ExecReload=/bin/kill -([A-Z0-9]+) \$MAINPID$`).FindAllStringSubmatch(unit, -1)
	if len(found) != 1 {
		t.Fatalf("the unit's ExecReload: %q", found)
	}
	reload := found[0][1]
	for _, s := range []string{"docs/reference/configuration.md"} {
		if said := regexp.MustCompile("SIG([A-Z0-9]+) \\(`systemctl reload locksidecar`\\)\\s+(makes the daemon read the file again|reloads all settings)").
			FindAllStringSubmatch(slurp(t, s), -1); len(said) != 1 || said[0][1] != reload {
			t.Errorf("%s: %q, and systemctl reload sends SIG%s", s, said, reload)
		}
	}
	guide := slurp(t, "docs/operate/install.md")
	line := func(what string) string {
		return regexp.MustCompile(`(?m)^(systemctl .*\S) +# after a change of the ` +
			what).FindString(guide)
	}
	if s := line("configuration"); !strings.HasPrefix(s, "systemctl reload locksidecar ") {
		t.Errorf("docs/operate/install.md, a change of the configuration: %q", s)
	}
	const takeover = "systemctl kill --kill-whom=main -s USR2 locksidecar"
	if s := line("program"); !strings.HasPrefix(s, takeover+" ") || reload == "USR2" {
		t.Errorf("docs/operate/install.md, a change of the program: %q", s)
	}
	for _, s := range []string{"docs/operate/upgrade.md", "deploy/systemd/locksidecar.service"} {
		if !strings.Contains(slurp(t, s), takeover) {
			t.Errorf("%s does not have %s", s, takeover)
		}
	}

	// The daemon does what the texts say.
	h := newHost(t, "--log-format", "json")
	h.daemon.signal(map[string]syscall.Signal{"HUP": syscall.SIGHUP, "USR2": syscall.SIGUSR2}[reload])
	eventually(t, "the daemon has read its configuration again", func() bool {
		return strings.Contains(h.daemon.err.String(), `"event":"reload`)
	})
	if log := h.daemon.err.String(); !strings.Contains(log, `"event":"reloaded"`) {
		t.Error(log)
	}
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}
