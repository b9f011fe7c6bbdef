package mysql_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/mysql"
)

func TestParseUnderstands(t *testing.T) {
	for raw, want := range map[string]string{
		"mysql://h/d": "h:3306 d locksidecar \"\" 2s 3s 100ms",
		"mysql://me:pw@h:1/d?table=t&prefix=a%3A":                        "h:1 d t \"a:\" 2s 3s 100ms",
		"mysql://[::1]/d-b%20x?timeout=1s&poll=20ms":                     "[::1]:3306 d-b x locksidecar \"\" 1s 3s 20ms",
		"mysql://me@h/d?password_file=/f&tls=true&ca=/c&waiter_lease=5s": "h:3306 d locksidecar \"\" 2s 5s 100ms",
	} {
		c, err := mysql.Parse(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		got := fmt.Sprintf("%s %s %s %q %v %v %v", c.Addr(), c.Database, c.Table, c.Prefix, c.Timeout,
			c.WaiterLease, c.Poll)
		if got != want {
			t.Errorf("%s: %s", raw, got)
		}
	}
}

func TestParseRefusesWithoutShowingSecrets(t *testing.T) {
	for raw, says := range map[string]string{
		"":                               "scheme",
		"postgres://h/d":                 "scheme",
		"mysql://u:geheim@h":             "database",
		"mysql://u:geheim@h/":            "database",
		"mysql://u:geheim@h/a/b":         "database",
		"mysql://u:geheim@h/a%60b":       "database",
		"mysql://u:geheim@a,b/d":         "several hosts",
		"mysql://:geheim@h/d":            "no user",
		"mysql://u:geheim@h/d?table=a`b": "table",
		"mysql://u:geheim@h/d?table=":    "table",
		"mysql://u:geheim@h/d?table=a.b": "table",
		"mysql://u:geheim@h/d?what=1":    "unknown",
		"mysql://u:geheim@h/d?poll=1":    "duration",
		"mysql://u:geheim@h/d?ca=/x":     "tls=true",
		"mysql://u:geheim@h:x/d":         "port",
		"mysql://u:geheim@h/d?prefix=" + strings.Repeat("x", 65): "longer than 64",
	} {
		_, err := mysql.Parse(raw)
		if !errors.Is(err, mysql.ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", raw, err)
		}
		if err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: the error shows the password: %v", raw, err)
		}
	}
}

func TestConfigShowsNoSecret(t *testing.T) {
	c, err := mysql.Parse("mysql://me:geheim@h/d?table=t&prefix=p%3A&timeout=1s&tls=1")
	if err != nil {
		t.Fatal(err)
	}
	if s := c.String(); s != "mysql://me:xxxxx@h:3306/d?prefix=p%3A&table=t&tls=true" {
		t.Error(s)
	}
	js, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprintf("%v %+v %s", c, c, js), fmt.Sprintf("%#v", *c.URL)} {
		if strings.Contains(s, "geheim") {
			t.Error(s)
		}
	}
	if again, err := mysql.Parse(strings.Replace(c.String(), ":xxxxx", "", 1)); err != nil ||
		again.Table != "t" || again.Prefix != "p:" {
		t.Errorf("%+v, %v", again, err)
	}
}
