package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// secrets has the texts that must not be shown, by the place where each one is configured.
type secrets map[string]string

// at creates the secret of a place.
func (s secrets) at(place string) string {
	s[place] = "sesame+" + place + "/Zq7"
	return s[place]
}

// in returns the places whose secrets a text shows, in any encoding.
func (s secrets) in(text string) (places []string) {
	for place, secret := range s {
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret),
			fmt.Sprintf("%x", secret),
			strings.Trim(base64.StdEncoding.EncodeToString([]byte(secret)), "="), fmt.Sprint([]byte(secret)),
			"sesame+" + place, "sesame%2B" + place} {
			if strings.Contains(text, form) {
				places = append(places, place)
				break
			}
		}
	}
	return places
}

// gossip starts a server that answers every line with an error, which repeats everything that the
// server has been sent. A Redis that is too old for a command repeats the command's arguments in
// this way.
func gossip(t *testing.T) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r, told := bufio.NewReader(c), ""
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					if line = strings.TrimSpace(line); !strings.HasPrefix(line, "*") &&
						!strings.HasPrefix(line, "$") {
						told += " '" + line + "'"
					}
					if r.Buffered() == 0 {
						fmt.Fprintf(c, "-ERR unknown command, with args beginning with:%s\r\n", told)
						told = ""
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// There is a secret in every place that can have one. Some stores exist, some do not, some refuse
// the daemon, and some repeat what they are sent. No secret is logged, printed, counted or shown,
// and none is in a file that the daemon writes.
func TestNoSecretIsEverShown(t *testing.T) {
	t.Parallel()
	s := make(secrets)
	h := bareHost(t)
	put := func(name, text string) string {
		path := filepath.Join(h.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := testserver.StartRedis(t, "--requirepass", s.at("good"))
	echo, nobody, esc := gossip(t), "127.0.0.1:1", url.QueryEscape
	// Each kind of store has its secrets. Its URL names a server that repeats or refuses them, or an
	// address without a server.
	stores := func(addr, other string) map[string]string {
		s := func(place string) string { return s.at(place + "-" + other) }
		return map[string]string{
			"in-url": fmt.Sprintf("{upstream: 'redis://me:%s@%s'}", esc(s("in-url")), addr),
			"field": fmt.Sprintf("{upstream: 'redis://%s', username: me, password: '%s'}",
				addr, s("field")),
			"file": fmt.Sprintf("{upstream: 'redis://%s', password_file: %s}", addr,
				put(other+".password", s("file")+"\n")),
			"cluster":  fmt.Sprintf("{upstream: 'redis+cluster://%s', password: '%s'}", addr, s("cluster")),
			"sentinel": fmt.Sprintf("{upstream: 'redis+sentinel://%s/main?sentinel_user=x&sentinel_password_file=%s', password: '%s'}", addr, put(other+".sentinel", s("sentinel")), s("master")),
			"tls":      fmt.Sprintf("{upstream: 'rediss://me:%s@%s'}", esc(s("tls")), addr),
			"redlock": fmt.Sprintf("{upstream: 'redlock://me:%s@%s,%s,%s?max_ttl=60s'}", esc(s("redlock")),
				addr, "127.0.0.1:2", "127.0.0.1:3"),
			"etcd": fmt.Sprintf("{upstream: 'etcd://%s', username: me, password: '%s'}",
				addr, s("etcd")),
			"keeper":   fmt.Sprintf("{upstream: 'zookeeper://me:%s@%s/locks'}", esc(s("keeper")), addr),
			"sql":      fmt.Sprintf("{upstream: 'mysql://me:%s@%s/locks'}", esc(s("sql")), addr),
			"postgres": fmt.Sprintf("{upstream: 'postgres://me:%s@%s/locks'}", esc(s("postgres")), addr),
		}
	}
	config := "admin_listen: 127.0.0.1:0\nlog: {level: debug, audit: true}\noutage: local\noutage_after: 100ms\nstores:\n"
	namespaces := "namespaces:\n"
	gone := stores(nobody, "gone")
	// The daemon tries these stores for a long time.
	for _, slow := range []string{"cluster", "redlock", "etcd", "keeper", "tls"} {
		delete(gone, slow)
	}
	gone["good"] = fmt.Sprintf("{upstream: 'redis://%s', password_file: %s}", good.Addr(),
		put("good.password", s.at("good")+"\n"))
	for name, store := range gone {
		config += "  " + name + ": " + store + "\n"
		namespaces += fmt.Sprintf("  '%s:': {store: %[1]s}\n", name)
	}
	file := put("config.yaml", config+namespaces)
	seen := make(map[string]string)
	said := func(what string, p *proc) {
		seen[what] = p.rest()
		p.ends(-1)
		seen[what] += p.err.String()
	}

	check := []string{"config", "check", "--config"}
	files := 0
	broken := func(text string) string {
		files++
		return put(fmt.Sprint("broken", files, ".yaml"), text)
	}
	for name, args := range map[string][]string{
		"config check":     {file},
		"config check KEY": {file, "sql:k"},
		"config check, two passwords": {broken(fmt.Sprintf("upstream: 'redis://u:%s@h'\npassword: '%s'\n",
			esc(s.at("two-url")), s.at("two-field")))},
		"config check, lists":   {broken(fmt.Sprintf("password: ['%s']\n", s.at("list")))},
		"config check, no URLs": {broken(fmt.Sprintf("upstream: 'redis://u:%s@h@i'\nstores: {a: {upstream: 'me:%s@h'}}\n", s.at("no-url"), s.at("no-scheme")))},
		"config check, odd URLs": {broken(fmt.Sprintf("upstream: 'redis://u:%s@h/x/y'\nstores: {a: {upstream: 'mysql://u:%s@h?prefix=1'}, b: {upstream: 'etcd://u:%s@h:port'}}\n",
			esc(s.at("odd-path")), esc(s.at("odd-parameter")), esc(s.at("odd-port"))))},
		"config check, on the command line": {file, "--upstream",
			"redis://u:" + esc(s.at("flag")) + "@h"},
	} {
		said(name, h.run(append(slices.Clone(check), args...)...))
	}
	said("serve, with a key that is none", h.run("serve", "--config",
		broken(fmt.Sprintf("upstream: 'etcd://%s?tls=true&cert=%s&key=%[2]s'\npassword: '%[3]s'\nusername: me\n",
			nobody, put("key.pem", "-----BEGIN PRIVATE KEY-----\n"+s.at("key")+"\n"), s.at("beside-key")))))
	refused := make(map[string]*proc)
	for other, addr := range map[string]string{"refuses": good.Addr(), "repeats": echo,
		"alone": nobody} {
		for name, store := range stores(addr, other) {
			one := bareHost(t)
			refused["serve, "+name+" "+other] = one.run("serve", "--config",
				broken("log: {level: debug}\nstores: {x: "+store+"}\nnamespaces: {'': {store: x}}\n"))
		}
	}
	for name, p := range refused {
		eventually(t, name, func() bool { return !runs(p.cmd.Process.Pid) || strings.Contains(p.err.String(), `"event":"serving"`) })
		_ = p.cmd.Process.Signal(syscall.SIGABRT)
		said(name, p)
	}
	h.env = append(h.env, "LOCKSIDECAR_UPSTREAM=redis://"+nobody,
		"LOCKSIDECAR_PASSWORD="+s.at("environment"),
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://me:"+esc(s.at("otel-url"))+"@"+nobody,
		"OTEL_BSP_SCHEDULE_DELAY=10",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer "+s.at("otel-header")+","+s.at("otel-malformed"))
	h.serveFor(t, "--config", file)
	for name := range gone {
		h.env = append(h.env, "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		said("lock "+name, h.run("lock", "-n", name+":k", "--", "sh", "-c", "exit 0"))
	}
	held := h.lock([]string{"-n"}, "echo up; read x")
	_ = held
	for _, args := range [][]string{{"status"}, {"locks"}, {"locks", "--store"}, {"sessions"},
		{"waiters"}, {"top", "-n", "1"}, {"health"}} {
		for _, format := range [][]string{nil, {"-o", "json"}} {
			if args[0] == "top" || args[0] == "health" {
				format = nil
			}
			all := append(append([]string{}, args...), format...)
			said(strings.Join(all, " "), h.run(all...))
		}
	}
	admin := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", admin.Socket(h.socket))
		}}}
	for _, path := range []string{"/metrics", "/livez", "/readyz", "/view.json", "/"} {
		r, err := admin.Get("http://localhost" + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || len(b) == 0 {
			t.Fatalf("%s: %d bytes, %v", path, len(b), err)
		}
		seen[path] = string(b)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", h.daemon.cmd.Process.Pid))
	if err == nil {
		seen["its command line"] = string(line)
	}
	eventually(t, "failures are logged", func() bool {
		log := h.daemon.err.String()
		return strings.Contains(log, `"event":"store_down"`) &&
			strings.Contains(log, `"event":"tracing_failed"`)
	})
	put("config.yaml", config+namespaces+"password: '"+s.at("reload")+"'\npassword_file: /x\nttl: x\n")
	h.daemon.signal(syscall.SIGHUP)
	eventually(t, "the reload is refused", func() bool {
		return strings.Contains(h.daemon.err.String(), `"event":"reload_refused"`)
	})
	h.daemon.signal(syscall.SIGABRT)
	h.daemon.ends(-1)
	seen["the log"] = h.daemon.err.String()
	if !strings.Contains(seen["the log"], "goroutine ") {
		t.Error("there is no dump in the log")
	}
	beside, err := filepath.Glob(h.socket + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range beside {
		if b, err := os.ReadFile(name); err == nil {
			seen[filepath.Base(name)] = string(b)
		}
	}
	for what, text := range seen {
		if places := s.in(text); len(places) > 0 {
			t.Errorf("%s shows %q:\n%s", what, places, linesWith(text, "sesame"))
		}
		if text == "" && !strings.HasPrefix(what, "lock ") && !strings.HasPrefix(what, "s.sock") {
			t.Errorf("%s says nothing", what)
		}
	}
	if len(seen) < 30 {
		t.Errorf("only %d texts were looked at", len(seen))
	}
}

// serveFor runs serve when not all stores exist.
func (h *host) serveFor(t *testing.T, args ...string) {
	t.Helper()
	h.daemon = h.run(append([]string{"serve"}, args...)...)
	eventually(t, "the daemon serves", func() bool {
		select {
		case <-h.daemon.done:
			t.Fatalf("the daemon ended:\n%s", h.daemon.err)
		default:
		}
		return strings.Contains(h.daemon.err.String(), `"event":"serving"`)
	})
}

func linesWith(text, part string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			b.WriteString(line)
		}
	}
	return b.String()
}
