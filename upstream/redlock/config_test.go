package redlock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redlock"
)

// members returns the parameters with which a store makes its nodes.
func members(t *testing.T, cfg redlock.Config) (ms []redlock.Member) {
	t.Helper()
	s, err := redlock.OpenLazy(cfg, func(m redlock.Member) (upstream.Store, error) {
		ms = append(ms, m)
		return member(m)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return ms
}

func TestParseUnderstands(t *testing.T) {
	for url, want := range map[string]string{
		"redlock://a,b:1,[::1]:7":                "redis://a:6379/0?prefix=lock%3A&timeout=500ms redis://b:1/0?prefix=lock%3A&timeout=500ms redis://[::1]:7/0?prefix=lock%3A&timeout=500ms",
		"redlock://me:p%40w@a,b,c/2?prefix=x":    "redis://me:p%40w@a:6379/2?prefix=x&timeout=500ms redis://me:p%40w@b:6379/2?prefix=x&timeout=500ms redis://me:p%40w@c:6379/2?prefix=x&timeout=500ms",
		"redlock://a,b,c?timeout=50ms&prefix=":   "redis://a:6379/0?prefix=&timeout=50ms redis://b:6379/0?prefix=&timeout=50ms redis://c:6379/0?prefix=&timeout=50ms",
		"redlocks://a,b,c?server_name=n&prefix=": "rediss://a:6379/0?prefix=&server_name=n&timeout=500ms rediss://b:6379/0?prefix=&server_name=n&timeout=500ms rediss://c:6379/0?prefix=&server_name=n&timeout=500ms",
		"redlock://a,b,c?allow_eviction=true":    "redis://a:6379/0?allow_eviction=true&prefix=lock%3A&timeout=500ms redis://b:6379/0?allow_eviction=true&prefix=lock%3A&timeout=500ms redis://c:6379/0?allow_eviction=true&prefix=lock%3A&timeout=500ms",
	} {
		cfg, err := redlock.Parse(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		var got []string
		for _, m := range members(t, cfg) {
			got = append(got, m.URL)
			if m.MinUptime != cfg.MaxTTL*101/100 || len(m.Instance) != 22 {
				t.Errorf("%s: %+v", url, m)
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s:\n has the members %s\n and should have  %s", url, s, want)
		}
	}
}

func TestTheLongestTTLIsTheCallersUnlessTheURLSaysIt(t *testing.T) {
	for url, want := range map[string]time.Duration{"redlock://a,b,c": time.Hour,
		"redlock://a,b,c?max_ttl=5m": 5 * time.Minute} {
		cfg, err := redlock.Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		if !cfg.MaxTTLSet && cfg.MaxTTL != redlock.DefaultMaxTTL {
			t.Errorf("%s: %v", url, cfg.MaxTTL)
		}
		if cfg.SetMaxTTL(time.Hour); cfg.MaxTTL != want {
			t.Errorf("%s: %v", url, cfg.MaxTTL)
		}
	}
}

func TestParseRefusesAndSaysWhat(t *testing.T) {
	for url, says := range map[string]string{
		"redis://a,b,c":                               "scheme",
		"redlock:a,b,c":                               "form",
		"redlock://a,b":                               "nodes from 3 to 15, not 2",
		"redlock://a":                                 "nodes from 3 to 15, not 1",
		"redlock://a,b,c,d":                           "no more nodes than 3",
		"redlock://a,b,a:6379":                        "duplicate",
		"redlock://a,,c":                              "no host",
		"redlock://a,b,c/x":                           "database",
		"redlock://a,b,c:0":                           "port",
		"redlock://a,b,c?drift=1":                     "drift",
		"redlock://a,b,c?drift=NaN":                   "drift",
		"redlock://a,b,c?max_ttl=1":                   "max_ttl",
		"redlock://a,b,c?max_ttl=1ms":                 "max_ttl",
		"redlock://a,b,c?max_ttl=25h":                 "max_ttl",
		"redlock://a,b,c?ttl=1s":                      "unknown",
		"redlock://a,b,c?prefix=locksidecar:x":        "reserved",
		"redlock://a,b,c?ca=/ca":                      "redlocks",
		"redlock://me@a,b,c":                          "password",
		"redlock://:hunter2@a,b":                      "nodes",
		"redlock://:hunter2@a,b,c?password_file=/f":   "both",
		"redlock://" + strings.Repeat("a,", 16) + "a": "duplicate",
	} {
		_, err := redlock.Parse(url)
		if !errors.Is(err, redlock.ErrConfig) || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestAConfigShowsNoSecret(t *testing.T) {
	cfg, err := redlock.Parse("redlock://me:hunter2@a,b,c/1?max_ttl=2m")
	if err != nil {
		t.Fatal(err)
	}
	if s := cfg.String(); s != "redlock://me:xxxxx@a:6379,b:6379,c:6379/1?max_ttl=2m0s&prefix=lock%3A" {
		t.Error(s)
	}
	for _, m := range members(t, cfg) {
		if s := fmt.Sprintf("%v %+v %s %#v", m, m, m, m); strings.Contains(s, "hunter2") {
			t.Error(s)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("redlock://a,b:1,c/2?max_ttl=5s&drift=0.02")
	f.Add("redlocks://u:p@a,b,[::1]:2?ca=/x")
	f.Fuzz(func(t *testing.T, raw string) {
		cfg, err := redlock.Parse(raw)
		if err != nil {
			return
		}
		if n := len(cfg.URL.Hosts); n < 3 || n%2 == 0 || cfg.MaxTTL <= 0 || cfg.Timeout <= 0 {
			t.Errorf("%+v", cfg)
		}
		_ = cfg.String()
	})
}
