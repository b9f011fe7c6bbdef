package config_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/protocol"
)

// environ is an environment for tests.
type environ map[string]string

func (e environ) get(name string) (string, bool) { v, ok := e[name]; return v, ok }

func load(t *testing.T, yaml string, env environ, args ...string) (*config.Config, error) {
	t.Helper()
	file := ""
	if yaml != "" {
		file = filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(fs, env.get)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return config.Load(file, env.get, fs)
}

func TestEveryLayerCounts(t *testing.T) {
	c, err := load(t, "ttl: 1s\ndrain: 1s\nmax_wait: 1s\n",
		environ{"LOCKSIDECAR_DRAIN": "2s", "LOCKSIDECAR_MAX_WAIT": "2s", "LOCKSIDECAR_MAX_HANDOFFS": ""},
		"--max-wait", "3s")
	if err != nil {
		t.Fatal(err)
	}
	got := []time.Duration{c.TTL, c.Drain, c.MaxWait, time.Duration(c.MaxHandoffs)}
	if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 8}; !equal(got, want) {
		t.Errorf("ttl, drain, max_wait and max_handoffs are %v, want %v", got, want)
	}
	if from := c.From(config.Find("max_wait")); from != "--max-wait" {
		t.Errorf("max_wait is from %s", from)
	}
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestEverySettingCanBeSetEverywhere(t *testing.T) {
	values := map[string]string{"upstream": "redis://h", "socket_mode": "0600",
		"admin_listen": "127.0.0.1:9402", "log.level": "warn", "log.format": "json", "log.audit": "true",
		"keep_over_restart": "true", "log.keys": "hashed",
		"max_handoffs": "9", "linger": "1s", "linger_pause": "1s", "interop": "true", "fence_epoch": "9",
		"outage": "local", "users": "1,2", "groups": "3", "limits.max_frame": "8192",
		"limits.out_buffer": "8192", "operators.users": "1,2", "operators.groups": "3"}
	for _, s := range config.Settings() {
		v := values[s.Path]
		switch {
		case v != "":
		case strings.HasPrefix(s.Path, "limits."):
			v = "77"
		case regexp.MustCompile(`ttl|wait|drain|time|hold$|heart|after`).MatchString(s.Path):
			v = "77s"
		default:
			v = "x"
		}
		in := strings.Split(s.Path, ".")
		yaml := ""
		for depth, name := range in {
			yaml += strings.Repeat("  ", depth) + name + ":"
			if depth < len(in)-1 {
				yaml += "\n"
			}
		}
		yaml += " " + v + "\n"
		want := v
		if s.Secret {
			want = "(set)"
		}
		if v == "77s" {
			want = "1m17s"
		}
		c, err := load(t, yaml, nil)
		if err != nil || s.Value(c) != want {
			t.Errorf("file %q: %s = %q (%v)", yaml, s.Path, s.Value(c), err)
		}
		c, err = load(t, "", environ{s.Variable(): v})
		if err != nil || s.Value(c) != want || c.From(&s) != s.Variable() {
			t.Errorf("%s=%s: %s = %q from %s (%v)", s.Variable(), v, s.Path, s.Value(c), c.From(&s), err)
		}
		if s.Flag == "" {
			continue
		}
		if s.Secret {
			t.Errorf("%s is a secret and has a flag", s.Path)
		}
		c, err = load(t, "", nil, "--"+s.Flag, v)
		if err != nil || s.Value(c) != want {
			t.Errorf("--%s %s: %s = %q (%v)", s.Flag, v, s.Path, s.Value(c), err)
		}
	}
}

func TestFaultsOfAFile(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"a: 1\n", `:1: unknown field "a"; known here: socket, `},
		{"\nlimits:\n  a: 1\n", `:3: unknown field "limits.a"; known here: max_conns, `},
		{"ttl: 1s\nttl: 2s\n", ":2: ttl is set on line 1 already"},
		{"stores: {}\nstores: {}\n", ":2: stores is set on line 1 already"},
		{"classes: {a: b}\nlimits:\nclasses: {c: d}\n", ":3: classes is set on line 1 already"},
		{"ttl: 30\n", `ttl: .*:1: "30": needs a unit, as in 30s`},
		{"ttl: soon\n", ":1: .*is not a duration"},
		{"ttl: -1s\n", ":1: .*is negative"},
		{"ttl: 1ms\n", ":1: .*too short"},
		{"ttl: 25h\n", "ttl: .*:1: \"25h\": is too long; the maximum is 24h"},
		{"ttl:\n", ":1: ttl has no value"},
		{"ttl: [1s]\n", ":1: ttl has to be one value"},
		{"limits: 3\n", ":1: limits has to be fields"},
		{"- a\n", ":1: the file has to be fields"},
		{"just words\n", ":1: the file has to be fields"},
		{"socket_mode: 0999\n", ":1: .*is not a file mode"},
		{"socket_mode: 0060\n", ":1: .*own user"},
		{"socket: \"a\\nb\"\n", ":1: .*control character"},
		{"socket: " + strings.Repeat("x", 104) + "\n", "socket .*:1.: the path has 104 bytes"},
		{"log:\n  level: loud\n", ":2: .*is not one of debug, info, warn, error"},
		{"classes: {Orders: \"o:\"}\n", "classes.Orders .*:1.: a class name"},
		{"classes: {a: \"o:\", b: \"o:\"}\n", "classes.b .*:1.: a already has the prefix"},
		{"classes: {a: {}}\n", "classes.a has to be a prefix"},
		{"classes: {a: \"\"}\n", "classes.a .*:1.: "},
		{"admin_listen: here\n", "admin_listen .*:1.: .*HOST:PORT"},
		{"admin_listen: 127.0.0.1:x\n", "admin_listen .*:1.: .*HOST:PORT"},
		{"admin_listen: 127.0.0.1:99999\n", "admin_listen .*:1.: .*HOST:PORT"},
		{"linger: 3s\n", "linger: .*:1: \"3s\": is too long; the maximum is 2s"},
		{"linger: 1s\ninterop: true\n", "linger .*:1.: linger is not available with interop"},
		{"max_handoffs: 769\n", ":1: .*not between 1 and 768"},
		{"ttl: 1s\n---\nttl: 2s\n", "a second document"},
		{"a: b: c\n", "mapping values are not allowed"},
		{"ttl: 1s\nupstream: memory:\n", `line 2: mapping.*; a value that ends with a colon needs quot`},
		{"limits:\n\tmax_conns: 1\n", "line 2: .*cannot start any token; indent with spaces"},
		{"upstream: memory\n", `upstream .*:1.: "memory" is not a URL; did you mean memory:.$`},
		{"upstream: cache:6379\n", `upstream .*:1.: "cache:6379" is not .* write redis://cache:6379$`},
		{"upstream: cache:6379/2\n", `is not a URL; .* write redis://cache:6379/2$`},
		{"x: &x 1\nttl: *x\n", "ttl has to be one value"},
		{"upstream: foo://h\n", `upstream .*:1.: unknown store "foo:"; known are memory:, redis:`},
		{"stores: 3\n", ":1: stores has to be names"},
		{"stores: {a: {}}\n", "stores.a.upstream .default.: it needs a URL"},
		{"stores: {a: {upstraem: x}}\n", `:1: unknown field "stores.a.upstraem"; did you mean "upstream"?`},
		{"stores: {default: {upstream: 'memory:'}}\n", `cannot have the name "default"`},
		{"namespaces:\n  order.:\n    stroe: a\n", `:3: unknown field "namespaces.order..stroe"; did you mean "store"?`},
		{"namespaces:\n  order.:\n    other: a\n", `:3: unknown field "namespaces.order..other"; known here: store, both, max_holds`},
		{"namespaces:\n  order.:\n    store: a\n", `namespaces.order..store .*:3.: there is no store "a"`},
		{"namespaces:\n  a: {ttl: 30}\n", `:2: namespaces.a.ttl: "30": needs a unit`},
		{"namespaces:\n  a: {ttl: 1s}\n  a: {ttl: 2s}\n", ":3: namespaces.a is set on line 2 already"},
		{"namespaces:\n  a: {both: default}\n", "namespaces.a.both .*: store and both name the same"},
		{"namespaces:\n  a: {ttl: [1s]}\n", "namespaces.a.ttl has to be one value"},
		{"namespaces:\n  a: {users: nobody-at-all}\n", `there is no user "nobody-at-all"`},
		{"namespaces:\n  a: {outage: maybe}\n", "is not one of fail, local"},
		{"namespaces:\n  a: {heartbeat: 10ms}\n", "the minimum is 1s"},
		{"namespaces:\n  a: {fence_epoch: -1}\n", "below 2\\^52"},
		{"\"\": 1\n", `:1: unknown field ""; known here: socket, `},
		{"\"\": {ttl: 1s}\n", `:1: unknown field ""; known here: socket, `},
		{"limits: {\"\": 1}\n", `:1: unknown field "limits."; known here: max_conns, `},
		{"max_conns: 1\n", `:1: unknown field "max_conns"; did you mean "limits.max_conns"?`},
		{"max_holds: 1\n", `:1: unknown field "max_holds"; did you mean "limits.max_holds"?`},
		{"log_level: info\n", `:1: unknown field "log_level"; did you mean "log.level"?`},
		{"limits.max_conns: 1\n", `:1: unknown field "limits.max_conns"; write limits: {max_conns: `},
		{"\".ttl\": 1s\n", `:1: unknown field ".ttl"; did you mean "ttl"`},
		{"? [ttl]\n: 1s\n", ":1: the name of a field has to be text"},
		{"? {a: b}\n: 1s\n", ":1: the name of a field has to be text"},
		{"socket: &ttl a\n*ttl : 1s\n", ":2: the name of a field has to be text"},
		{"namespaces: {? [a] : {ttl: 1s}}\n", ":1: the name of a field has to be text"},
		{"namespaces: {!!binary b3JkZXI6 : {ttl: 1s}}\n", ":1: the name of a field has to be text"},
		{"namespaces: {a: {? [ttl] : 1s}}\n", ":1: the name of a field has to be text"},
		{"ttl: !!binary MXM=\n", ":1: ttl has to be one value"},
		{"users: [!!binary cm9vdA==]\n", ":1: users has to be one value"},
	} {
		_, err := load(t, c.yaml, nil)
		if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
			t.Errorf("%q: %v, want %s", c.yaml, err, c.want)
		}
	}
}

// The path of a namespace can be the path of a field of another one.
func TestPrefixesMayLookLikePathsOfFields(t *testing.T) {
	c, err := load(t, `namespaces: {a: {ttl: 1s}, a.ttl: {ttl: 2s}, "": {ttl: 3s}, '""': {ttl: 4s}}`,
		nil)
	if err != nil {
		t.Fatal(err)
	}
	got := []time.Duration{c.Space("a").TTL, c.Space("a.ttl").TTL, c.Space("b").TTL, c.Space(`""`).TTL}
	if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second,
		4 * time.Second}; !equal(got, want) {
		t.Errorf("ttl is %v, want %v", got, want)
	}
}

// A file is read completely or refused: its end is never ignored.
func TestAFileThatIsTooLargeIsRefused(t *testing.T) {
	padding := strings.Repeat(strings.Repeat("#", 79)+"\n", 1<<20/80)
	if c, err := load(t, padding+"ttl: 7s\n", nil); err != nil || c.TTL != 7*time.Second {
		t.Errorf("a large file: %v", err)
	}
	if _, err := load(t, padding+padding+"unknown: 7s\n", nil); err == nil ||
		!strings.Contains(err.Error(), "larger than 1048576 bytes") {
		t.Errorf("a file that is too large: %v", err)
	}
}

func TestEmptyFilesAndLevelsAreTheDefaults(t *testing.T) {
	for _, yaml := range []string{"# nothing\n", "\n", "limits:\n", "limits: {}\nlog:\n  # level\n"} {
		if _, err := load(t, yaml, nil); err != nil {
			t.Errorf("%q: %v", yaml, err)
		}
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	const secret = "sesame"
	for _, c := range []struct {
		yaml string
		env  environ
		args []string
	}{
		{yaml: "upstream: redis://u:sesame@h\n"},
		{yaml: "upstream: redis://u:sesame@h:bad port/\n"},
		{yaml: "upstream: \"redis://u:sesame@h\\n\"\n"},
		{yaml: "upstream: u:sesame@h\n"},
		{yaml: "password: sesame\n"},
		{yaml: "stores: {a: {upstream: \"redis://u:sesame@h:bad port\"}}\n"},
		{yaml: "stores: {a: {upstream: redis://h, password: \"sesame\\n\"}}\n"},
		{yaml: "password: \"sesame\\n\"\n"},
		{yaml: "upstream: redis://u:sesame@h\npassword: sesame\n"},
		{env: environ{"LOCKSIDECAR_UPSTREAM": "redis://u:sesame@h"}},
		{env: environ{"LOCKSIDECAR_PASSWORD": "sesame\x01"}},
		{args: []string{"--upstream", "redis://:sesame@h"}},
	} {
		cfg, err := load(t, c.yaml, c.env, c.args...)
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%+v: the error shows it: %v", c, err)
		}
		for _, s := range config.Settings() {
			if strings.Contains(s.Value(cfg), secret) {
				t.Errorf("%+v: %s shows it: %s", c, s.Path, s.Value(cfg))
			}
		}
	}
}

func TestStoreURL(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"upstream: redis://h\n", "redis://h"},
		{"upstream: redis://h\nusername: u\npassword: p/w\n", "redis://u:p%2Fw@h"},
		{"upstream: redis://h\npassword: pw\n", "redis://:pw@h"},
		{"upstream: redis://u@h\nusername: other\npassword: pw\n", "redis://u:pw@h"},
		{"upstream: redis://u@h?db=3\npassword_file: /a b\n", "redis://u@h?db=3&password_file=%2Fa+b"},
		{"upstream: unix:///s\npassword_file: /f\n", "unix:///s?password_file=%2Ff"},
	} {
		cfg, err := load(t, c.yaml, nil)
		if err != nil || cfg.Main.URL() != c.want {
			t.Errorf("%q: %s (%v), want %s", c.yaml, cfg.Main.URL(), err, c.want)
		}
	}
}

func TestAPasswordOfTheEnvironmentReplacesTheFiles(t *testing.T) {
	c, err := load(t, "password: old\n", environ{"LOCKSIDECAR_PASSWORD_FILE": "/f"})
	if err != nil || c.Main.Password != "" || c.Main.PasswordFile != "/f" {
		t.Errorf("password %q, file %q (%v)", c.Main.Password, c.Main.PasswordFile, err)
	}
}

func TestWhereTheSocketIs(t *testing.T) {
	for _, c := range []struct {
		given string
		env   environ
		uid   int
		want  string
	}{
		{"/a", environ{"LOCKSIDECAR_SOCKET": "/b", "XDG_RUNTIME_DIR": "/c"}, 1000, "/a"},
		{"", environ{"LOCKSIDECAR_SOCKET": "/b", "XDG_RUNTIME_DIR": "/c"}, 1000, "/b"},
		{"", environ{"LOCKSIDECAR_SOCKET": "", "XDG_RUNTIME_DIR": "/c"}, 1000,
			"/c/locksidecar/locksidecar.sock"},
		{"", environ{"XDG_RUNTIME_DIR": "/c"}, 0, "/run/locksidecar/locksidecar.sock"},
		{"", environ{"XDG_RUNTIME_DIR": ""}, 1000, "/run/locksidecar/locksidecar.sock"},
		{"", nil, 1000, "/run/locksidecar/locksidecar.sock"},
	} {
		if got := config.ClientSocket(c.given, c.env.get, c.uid); got != c.want {
			t.Errorf("%q %v uid %d: %s, want %s", c.given, c.env, c.uid, got, c.want)
		}
	}
}

const example = "../../../../deploy/locksidecar.example.yaml"

func TestTheExampleIsWellFormed(t *testing.T) {
	if _, err := config.Load(example, environ{}.get,
		pflag.NewFlagSet("", pflag.ContinueOnError)); err != nil {
		t.Error(err)
	}
}

// The example has every field, with its default.
func TestTheExampleHasEveryDefault(t *testing.T) {
	b, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	active := regexp.MustCompile(`(?m)^( *)#([a-z])`).ReplaceAllString(string(b), "$1$2")
	c, err := load(t, active, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := config.Default(environ{}.get)
	for _, s := range config.Settings() {
		if c.From(&s) == "default" {
			t.Errorf("%s is not in the example", s.Path)
		}
		if s.Path != "socket" && s.Value(c) != s.Value(d) {
			t.Errorf("%s is %q in the example and %q by default", s.Path, s.Value(c), s.Value(d))
		}
	}
}

func TestClassesAreNamesForPrefixes(t *testing.T) {
	c, err := load(t, `
classes:
  orders: "order:"
  jobs: ["job:", "cron:"]
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []config.Class{{Name: "orders", Prefix: "order:"}, {Name: "jobs", Prefix: "job:"},
		{Name: "jobs", Prefix: "cron:"}}
	if !slices.Equal(c.Classes, want) {
		t.Errorf("%v", c.Classes)
	}
}

func TestNamespacesInheritWhatStandsAboveThem(t *testing.T) {
	c, err := load(t, `
namespaces:
  "order:":
    store: eu
    ttl: 5s
    users: [0, 1]
  "order:big:":
    max_handoffs: 3
stores:
  eu:
    upstream: redis://h
    password_file: /f
ttl: 10s
max_wait: 1m
`, environ{"LOCKSIDECAR_MAX_WAIT": "2m"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"x":           " 10s 2m0s 8 []",
		"order":       " 10s 2m0s 8 []",
		"order:":      "eu 5s 2m0s 8 [0 1]",
		"order:7":     "eu 5s 2m0s 8 [0 1]",
		"order:big:1": " 10s 2m0s 3 []",
	} {
		n := c.Space(key)
		if got := fmt.Sprint(n.Store, " ", n.TTL, " ", n.MaxWait, " ", n.MaxHandoffs, " ",
			n.Users); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	if u := c.Store("eu").URL(); u != "redis://h?password_file=%2Ff" {
		t.Error(u)
	}
}

// The daemon's first message to a client lists all namespaces. It has to fit into a frame of the
// size that every client reads, whatever the namespaces are.
func TestTheNamespacesFitIntoTheWelcome(t *testing.T) {
	for _, width := range []int{5, protocol.MaxKey} {
		most := func(n int) (*config.Config, error) {
			text := "heartbeat: 876000h\nnamespaces:\n"
			for i := range n {
				text += fmt.Sprintf("  '%0*d': {}\n", width, i)
			}
			return load(t, text, nil)
		}
		n := sort.Search(3000, func(n int) bool {
			_, err := most(n + 1)
			return err != nil
		})
		_, err := most(n + 1)
		if n < 100 || err == nil || !strings.Contains(err.Error(), "first message") {
			t.Fatalf("%d namespaces: %v", n+1, err)
		}
		c, err := most(n)
		if err != nil {
			t.Fatal(err)
		}
		w := protocol.Welcome{Version: math.MaxInt64, Session: math.MaxInt64, Now: math.MaxInt64,
			MaxFrame: math.MaxInt64, MinTTL: math.MaxInt64, DefaultTTL: math.MaxInt64,
			MaxTTL: math.MaxInt64, Daemon: strings.Repeat("v", 200)}
		for _, s := range c.AllNamespaces() {
			w.Namespaces = append(w.Namespaces, protocol.Namespace{Prefix: s.Prefix,
				Store: "zookeeper+zookeeper", Safety: "linearizable",
				Heartbeat: uint64(s.Heartbeat.Milliseconds())})
		}
		if size := len(protocol.AppendWelcome(nil, math.MaxInt64, &w)); size >
			protocol.HeaderLen+protocol.DefaultMaxFrame {
			t.Errorf("%d namespaces: a frame of %d bytes", n, size)
		}
	}
}
