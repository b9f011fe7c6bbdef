package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
)

// configured loads a configuration file with this text.
func configured(t *testing.T, yaml string) (*proposal, error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(string) (string, bool) { return "", false }
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(fs, env)
	if err := fs.Parse([]string{"--socket", filepath.Join(dir, "s")}); err != nil {
		t.Fatal(err)
	}
	return (&Main{Env: env}).load(file, fs)
}

// A configuration is checked by its plans before any store is opened. The plans and the stores must
// agree.
func TestPlansAndStoresHaveTheSameAbilities(t *testing.T) {
	nowhere := "127.0.0.1:1"
	for _, scheme := range config.Schemes() {
		url := scheme + "://" + nowhere
		switch {
		case scheme == "memory":
			url = "memory:"
		case strings.HasPrefix(scheme, "redlock"):
			url += ",127.0.0.1:2,127.0.0.1:3?timeout=700ms"
		case strings.HasSuffix(scheme, "sentinel"):
			url += "/mymaster"
		case strings.HasSuffix(scheme, "unix"):
			url = scheme + ":///nowhere"
		case scheme == "mysql":
			url = "mysql://root@" + nowhere + "/db"
		case strings.HasPrefix(scheme, "postgres"):
			url = scheme + "://postgres@" + nowhere + "/db"
		}
		t.Run(scheme, func(t *testing.T) {
			p, err := configured(t, "upstream: '"+url+"'\n")
			if err != nil {
				t.Fatal(err)
			}
			s, err := p.plans[""].open(t.Context(), opening{log: zap.NewNop(), lazy: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			i := s.Info()
			if is := (abilities{i.MinTTL, i.Queue, i.Rebase}); is != p.plans[""].can {
				t.Errorf("the plan says %+v and the store %+v", p.plans[""].can, is)
			}
		})
	}
}

// The daemon would refuse these configurations, so they are refused before anything is opened.
func TestConfigurationsThatNoDaemonServes(t *testing.T) {
	for yaml, want := range map[string]string{
		"upstream: 'redlock://a,b,c'\nlinger: 1s\n":                                                                      "linger (",
		"upstream: 'redlocks://a,b,c'\nlinger: 1s\n":                                                                     "linger (",
		"stores:\n  r: {upstream: 'redlocks://a,b,c'}\nnamespaces:\n  'x:': {store: r, linger: 1s}\n":                    "namespaces.x:.linger (",
		"stores:\n  r: {upstream: 'redlocks://a,b,c'}\nlinger: 1s\nnamespaces:\n  'x:': {both: r}\n":                     "linger (",
		"stores:\n  r: {upstream: 'redis://h'}\nnamespaces:\n  'x:': {both: r}\n":                                        "the embedded store default has some keys alone and others with both",
		"upstream: 'mysql://root@h/db'\nttl: 200ms\n":                                                                    "ttl (",
		"stores:\n  m: {upstream: 'mysql://root@h/db'}\nnamespaces:\n  'x:': {store: m, ttl: 200ms}\n":                   "namespaces.x:.ttl (",
		"stores:\n  e: {upstream: 'etcd://h'}\n  r: {upstream: 'redis://h'}\nnamespaces:\n  'x:': {store: e, both: r}\n": "namespaces.x:.both (",
		"stores:\n  r: {upstream: 'redis://r'}\n  s: {upstream: 'redis://s'}\n  r+s: {upstream: 'redis://t'}\n" +
			"namespaces:\n  'x:': {store: r, both: s}\n  'y:': {store: r+s}\n": "namespaces.y:: r+s is the name of a store, and of two",
	} {
		_, err := configured(t, yaml)
		if e, ok := err.(*exitError); !ok || e.code != exitUsage ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s\nis %v, want %s…", yaml, err, want)
		}
	}
}
