package redis_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/upstream/redis"
)

func plain() redis.Config {
	return redis.Config{Network: "tcp", Addr: "h:6379", Prefix: "lock:", Timeout: time.Second, WaiterLease: 3 * time.Second}
}

func TestParseUnderstands(t *testing.T) {
	noEnv(t)
	for url, change := range map[string]func(c *redis.Config){
		"redis://h":                     func(*redis.Config) {},
		"redis://h:6379/":               func(*redis.Config) {},
		"redis://h:1/2":                 func(c *redis.Config) { c.Addr, c.DB = "h:1", 2 },
		"redis://[::1]:7":               func(c *redis.Config) { c.Addr = "[::1]:7" },
		"redis://h?db=3&prefix=":        func(c *redis.Config) { c.DB, c.Prefix = 3, "" },
		"redis://:pw@h":                 func(c *redis.Config) { c.Password = "pw" },
		"redis://me:p%40w@h":            func(c *redis.Config) { c.User, c.Password = "me", "p@w" },
		"redis://me@h?password_file=/f": func(c *redis.Config) { c.User, c.PasswordFile = "me", "/f" },
		"redis://h?timeout=250ms&waiter_lease=5s&allow_eviction=true": func(c *redis.Config) {
			c.Timeout, c.WaiterLease, c.AllowEviction = 250*time.Millisecond, 5*time.Second, true
		},
		"rediss://h?ca=/ca&cert=/c&key=/k&server_name=n": func(c *redis.Config) {
			c.TLS, c.CA, c.Cert, c.Key, c.ServerName = true, "/ca", "/c", "/k", "n"
		},
		"redis+unix:///run/r.sock?db=4": func(c *redis.Config) { c.Network, c.Addr, c.DB = "unix", "/run/r.sock", 4 },
		"unix://me:pw@/run/r.sock": func(c *redis.Config) {
			c.Network, c.Addr, c.User, c.Password = "unix", "/run/r.sock", "me", "pw"
		},
	} {
		got, err := redis.Parse(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		want := plain()
		change(&want)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s:\n%s", url, d)
		}
	}
}

func TestParseRefusesWithoutShowingSecrets(t *testing.T) {
	noEnv(t)
	for url, says := range map[string]string{
		"":                                       "scheme",
		"h:6379":                                 "",
		"http://h":                               "scheme",
		"redis:h":                                "redis://",
		"redis://":                               "host",
		"redis://:6379":                          "host",
		"redis://h:0":                            "port",
		"redis://h:99999":                        "port",
		"redis://me:geh/eim@h":                   "well-formed",
		"redis://me:geheim%zz@h":                 "well-formed",
		"redis://:geheim@h:x":                    "well-formed",
		"redis://:geheim@h/x":                    "database",
		"redis://:geheim@h/-1":                   "database",
		"redis://:geheim@h?predix=a":             "predix",
		"redis://:geheim@h?db=1&db=2":            "twice",
		"redis://:geheim@h?timeout=3":            "duration",
		"redis://:geheim@h?timeout=1h":           "between",
		"redis://:geheim@h?waiter_lease=1ms":     "between",
		"redis://:geheim@h?allow_eviction=maybe": "true",
		"redis://:geheim@h?password_file=/f":     "both",
		"redis://me@h":                           "password",
		"redis://:geheim@h#x":                    "#",
		"redis://:geheim@h?ca=/f":                "rediss",
		"rediss://:geheim@h?cert=/f":             "together",
		"redis://h?prefix=locksidecar:x":         "reserved",
		"unix://h/path":                          "unix:///path",
		"redis+unix:///":                         "redis+unix:///path",
		"redis://:geheim@h?%zz":                  "well-formed",
	} {
		_, err := redis.Parse(url)
		if !errors.Is(err, redis.ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v does not say %q", url, err, says)
		} else if strings.Contains(err.Error(), "geh") {
			t.Errorf("%s: the password is in %q", url, err)
		}
	}
}

func TestPasswordComesFromTheEnvironmentWhenTheURLHasNone(t *testing.T) {
	noEnv(t)
	t.Setenv("LOCKSIDECAR_REDIS_PASSWORD", "pw")
	t.Setenv("LOCKSIDECAR_REDIS_USERNAME", "me")
	want := plain()
	want.User, want.Password = "me", "pw"
	check := func(url string) {
		t.Helper()
		got, err := redis.Parse(url)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%v\n%s", err, d)
		}
	}
	check("redis://h")
	want.User, want.Password = "you", "other"
	check("redis://you:other@h")
	want.User, want.Password, want.PasswordFile = "me", "", "/f"
	check("redis://h?password_file=/f")
	t.Setenv("LOCKSIDECAR_REDIS_PASSWORD_FILE", "/g")
	if _, err := redis.Parse("redis://h"); err == nil {
		t.Error("two passwords in the environment are accepted")
	}
	t.Setenv("LOCKSIDECAR_REDIS_PASSWORD", "")
	want.PasswordFile = "/g"
	check("redis://h")
}

func TestPrintedConfigsShowNoSecret(t *testing.T) {
	noEnv(t)
	for url, want := range map[string]string{
		"redis://me:geheim@h:1/2":       "redis://me:xxxxx@h:1/2?prefix=lock%3A",
		"rediss://h":                    "rediss://h:6379/0?prefix=lock%3A",
		"unix://:geheim@/run/s":         "redis+unix://:xxxxx@/run/s?db=0&prefix=lock%3A",
		"redis://me@h?password_file=/f": "redis://me@h:6379/0?prefix=lock%3A",
	} {
		c, err := redis.Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		if c.String() != want {
			t.Errorf("%s prints as %s, not %s", url, c, want)
		}
		js, _ := json.Marshal(c)
		for _, s := range []string{fmt.Sprintf("%v %+v %#v %s %q", c, c, c, c.Password, c.Password), string(js)} {
			if strings.Contains(s, "geheim") {
				t.Errorf("the password is in %s", s)
			}
		}
	}
}

func noEnv(t *testing.T) {
	for _, v := range []string{"USERNAME", "PASSWORD", "PASSWORD_FILE"} {
		t.Setenv("LOCKSIDECAR_REDIS_"+v, "")
	}
}
