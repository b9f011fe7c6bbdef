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
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

func plain(scheme string, hosts ...string) redis.Config {
	return redis.Config{
		URL: storeurl.URL{Scheme: scheme, Hosts: hosts, Timeout: time.Second,
			TLS: storeurl.TLS{On: strings.HasPrefix(scheme, "rediss")}},
		Network: "tcp", Addr: strings.Join(hosts, ","), Prefix: "lock:", WaiterLease: 3 * time.Second,
		WaitTimeout: 500 * time.Millisecond,
	}
}

func unix(scheme, path string) redis.Config {
	c := plain(scheme)
	c.Network, c.Addr, c.Path = "unix", path, path
	return c
}

func kind(k redis.Kind, c redis.Config) redis.Config { c.Kind = k; return c }

func with(c redis.Config, change func(*redis.Config)) redis.Config { change(&c); return c }

func TestParseUnderstands(t *testing.T) {
	h := plain("redis", "h:6379")
	cluster := kind(redis.Cluster, plain("redis+cluster", "a:6379", "b:1"))
	sentinel := kind(redis.Sentinel, plain("redis+sentinel", "a:26379", "b:1"))
	for url, want := range map[string]redis.Config{
		"redis://h":       h,
		"redis://h:6379/": with(h, func(c *redis.Config) { c.Path = "/" }),
		"redis://h:1/2": with(plain("redis", "h:1"), func(c *redis.Config) {
			c.Path, c.DB = "/2", 2
		}),
		"redis://[::1]:7":        plain("redis", "[::1]:7"),
		"redis://h?db=3&prefix=": with(h, func(c *redis.Config) { c.DB, c.Prefix = 3, "" }),
		"redis://:pw@h":          with(h, func(c *redis.Config) { c.Password = "pw" }),
		"redis://me:p%40w@h": with(h, func(c *redis.Config) {
			c.User, c.Password = "me", "p@w"
		}),
		"redis://me@h?password_file=/f": with(h, func(c *redis.Config) {
			c.User, c.PasswordFile = "me", "/f"
		}),
		"redis://h?timeout=250ms&waiter_lease=5s&allow_eviction=true": with(h, func(c *redis.Config) {
			c.Timeout, c.WaiterLease, c.AllowEviction, c.WaitTimeout = 250*time.Millisecond, 5*time.Second,
				true, 125*time.Millisecond
		}),
		"redis://h?wait_replicas=2&wait_timeout=100ms": with(h, func(c *redis.Config) {
			c.WaitReplicas, c.WaitTimeout = 2, 100*time.Millisecond
		}),
		"redis://h?wait_aof=local": with(h, func(c *redis.Config) { c.WaitAOF.Local = true }),
		"redis://h?wait_aof=local,2": with(h, func(c *redis.Config) {
			c.WaitAOF = redis.AOF{Local: true, Replicas: 2}
		}),
		"redis://h?wait_aof=3": with(h, func(c *redis.Config) { c.WaitAOF = redis.AOF{Replicas: 3} }),
		"rediss://h?ca=/ca&cert=/c&key=/k&server_name=n": with(plain("rediss", "h:6379"),
			func(c *redis.Config) {
				c.TLS = storeurl.TLS{On: true, CA: "/ca", Cert: "/c", Key: "/k", ServerName: "n"}
			}),
		"redis+unix:///run/r.sock?db=4": with(unix("redis+unix", "/run/r.sock"), func(c *redis.Config) {
			c.DB = 4
		}),
		"unix://me:pw@/run/r.sock": with(unix("unix", "/run/r.sock"), func(c *redis.Config) {
			c.User, c.Password = "me", "pw"
		}),
		"redis+cluster://a,b:1": cluster,
		"redis+cluster://u:p@a,b:1/0": with(cluster, func(c *redis.Config) {
			c.Path, c.User, c.Password = "/0", "u", "p"
		}),
		"rediss+cluster://a?ca=/ca": with(kind(redis.Cluster, plain("rediss+cluster", "a:6379")),
			func(c *redis.Config) { c.TLS.CA = "/ca" }),
		"redis+sentinel://a,b:1/m": with(sentinel, func(c *redis.Config) {
			c.Path, c.Master = "/m", "m"
		}),
		"redis+sentinel://:p@a,b:1/m/3": with(sentinel, func(c *redis.Config) {
			c.Path, c.Master, c.DB, c.Password = "/m/3", "m", 3, "p"
		}),
		"rediss+sentinel://a/m?sentinel_user=u&sentinel_password_file=/f&sentinel_tls=false": with(kind(redis.Sentinel, plain("rediss+sentinel", "a:26379")),
			func(c *redis.Config) {
				c.Path, c.Master, c.SentinelUser, c.SentinelPasswordFile, c.SentinelPlain = "/m", "m",
					"u", "/f", true
			}),
	} {
		got, err := redis.Parse(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s:\n%s", url, d)
		}
	}
}

func TestParseRefusesWithoutShowingSecrets(t *testing.T) {
	for url, says := range map[string]string{
		"":                                          "scheme",
		"h:6379":                                    "",
		"http://h":                                  "scheme",
		"redis:h":                                   "redis://",
		"redis://":                                  "host",
		"redis://:6379":                             "host",
		"redis://h:0":                               "port",
		"redis://h:99999":                           "port",
		"redis://me:geh/eim@h":                      "malformed",
		"redis://me:geheim%zz@h":                    "malformed",
		"redis://:geheim@h:x":                       "port",
		"redis://:geheim@h/x":                       "database",
		"redis://:geheim@h/-1":                      "database",
		"redis://:geheim@h?predix=a":                "predix",
		"redis://:geheim@h?db=1&db=2":               "duplicate",
		"redis://:geheim@h?timeout=3":               "duration",
		"redis://:geheim@h?timeout=1h":              "between",
		"redis://:geheim@h?waiter_lease=1ms":        "between",
		"redis://:geheim@h?allow_eviction=maybe":    "true",
		"redis://:geheim@h?password_file=/f":        "both",
		"redis://me@h":                              "password",
		"redis://:geheim@h#x":                       "#",
		"redis://:geheim@h?ca=/f":                   "rediss",
		"redis://:geheim@a,b":                       "redlock://",
		"redis+sentinel://:geheim@a,b":              "MASTERNAME",
		"redis+sentinel://:geheim@a/m/x":            "database",
		"redis+sentinel://a/m?sentinel_user=u":      "sentinel_password_file",
		"redis+cluster://:geheim@a/1":               "no databases",
		"redis+cluster://:geheim@a?db=1":            "unknown",
		"redis+cluster://:geheim@a,a":               "duplicate",
		"redis://h?sentinel_user=u":                 "unknown",
		"redis://h?wait_replicas=-1":                "between",
		"redis://h?wait_aof=2,local":                "local,N",
		"redis://h?wait_aof=local,":                 "local,N",
		"redis://h?wait_aof=":                       "local,N",
		"redis://h?wait_timeout=1ms":                "wait_replicas",
		"redis://h?wait_replicas=1&wait_timeout=1s": "shorter",
		"rediss://:geheim@h?cert=/f":                "need each other",
		"redis://h?prefix=locksidecar:x":            "reserved",
		"unix://h/path":                             "unix:///path",
		"redis+unix:///":                            "redis+unix:///path",
		"redis://:geheim@h?%zz":                     "malformed",
	} {
		_, err := redis.Parse(url)
		if !errors.Is(err, redis.ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v does not say %q", url, err, says)
		} else if strings.Contains(err.Error(), "geh") {
			t.Errorf("%s: the password is in %q", url, err)
		}
	}
}

func TestTheEnvironmentIsNotRead(t *testing.T) {
	for _, v := range []string{"USERNAME", "PASSWORD", "PASSWORD_FILE"} {
		t.Setenv("LOCKSIDECAR_REDIS_"+v, "x")
	}
	got, err := redis.Parse("redis://h")
	if d := cmp.Diff(plain("redis", "h:6379"), got); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
}

func TestPrintedConfigsShowNoSecret(t *testing.T) {
	for url, want := range map[string]string{
		"redis://me:geheim@h:1/2":                         "redis://me:xxxxx@h:1/2?prefix=lock%3A",
		"rediss://h":                                      "rediss://h:6379/0?prefix=lock%3A",
		"unix://:geheim@/run/s":                           "redis+unix://:xxxxx@/run/s?db=0&prefix=lock%3A",
		"redis://me@h?password_file=/f":                   "redis://me@h:6379/0?prefix=lock%3A",
		"redis+sentinel://:geheim@a,b/m?wait_replicas=1":  "redis+sentinel://:xxxxx@a:26379,b:26379/m/0?prefix=lock%3A&wait_replicas=1",
		"rediss+cluster://me:geheim@a,b:1?wait_aof=local": "rediss+cluster://me:xxxxx@a:6379,b:1?prefix=lock%3A&wait_aof=local",
	} {
		c, err := redis.Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		if c.String() != want {
			t.Errorf("%s prints as %s, not %s", url, c, want)
		}
		js, _ := json.Marshal(c)
		for _, s := range []string{fmt.Sprintf("%v %+v %#v %s %q", c, c, c, c.Password, c.Password),
			string(js)} {
			if strings.Contains(s, "geheim") {
				t.Errorf("the password is in %s", s)
			}
		}
	}
}
