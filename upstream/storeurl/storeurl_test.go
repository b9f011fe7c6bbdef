package storeurl

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func parse(raw string) (*URL, string, error) {
	var prefix string
	u, err := Parse(raw, Spec{Schemes: []string{"etcd"}, Secure: []string{"etcds"},
		Port: "2379", CanTLS: true,
		Params: map[string]func(string) error{"prefix": Text(&prefix)}})
	return u, prefix, err
}

func TestParse(t *testing.T) {
	u, prefix, err := parse("etcd://me:p%40ss%3A@a,b:1,[::1]:2,[fe80::1]/some/pa%20th?prefix=%2Fx&timeout=2s&tls=true&ca=/c")
	if err != nil {
		t.Fatal(err)
	}
	want := &URL{Scheme: "etcd", Hosts: []string{"a:2379", "b:1", "[::1]:2", "[fe80::1]:2379"},
		Path: "/some/pa th",
		User: "me", Password: "p@ss:", Timeout: 2 * time.Second,
		TLS: TLS{On: true, ByParameter: true, CA: "/c"}}
	if !reflect.DeepEqual(u, want) || prefix != "/x" {
		t.Errorf("it is %#v with %q", u, prefix)
	}
	if s := u.String(); s != "etcd://me:xxxxx@a:2379,b:1,[::1]:2,[fe80::1]:2379/some/pa%20th" {
		t.Error(s)
	}
	if s := fmt.Sprintf("%v %+v %#v", u, *u, *u); strings.Contains(s, "p@ss") {
		t.Errorf("printing shows the password: %s", s)
	}
}

func TestParseUnix(t *testing.T) {
	u, err := Parse("unix:///run/a.sock", Spec{Schemes: []string{"unix"}})
	if err != nil || u.Path != "/run/a.sock" || u.Hosts != nil {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := Parse("unix://host/run/a.sock", Spec{Schemes: []string{"unix"}}); err == nil {
		t.Error("a host is taken")
	}
}

func TestParseFaults(t *testing.T) {
	for raw, want := range map[string]string{
		"etcd:":                             "scheme://",
		"redis://a":                         `scheme "redis" is none of etcd, etcds`,
		"etcd://":                           "no host",
		"etcd://a,,b":                       "no host",
		"etcd://a:0":                        "port",
		"etcd://a:1:2":                      "port",
		"etcd://::1":                        "no host",
		"etcd://[::1":                       "not a host",
		"etcd://a b":                        "not a host",
		"etcd://a,a:2379":                   "duplicate",
		"etcd://a?x=1":                      `parameter "x" is unknown (known: ca, cert, key, password_file, prefix, server_name, timeout, tls)`,
		"etcd://a?tiemout=1s":               `parameter "tiemout" is unknown; did you mean "timeout"?`,
		"etcd://a?sever-name=x":             `parameter "sever-name" is unknown; did you mean "server_name"?`,
		"etcd://a?prefix=1&prefix=2":        "duplicate",
		"etcd://a?timeout=2":                "duration",
		"etcd://a?timeout=1h":               "between",
		"etcd://a?cert=x&tls=1":             "need each other",
		"etcd://a?ca=x":                     "tls=true",
		"etcd://a?%zz":                      "malformed",
		"etcd://a#b":                        "#",
		"etcd://u:secret@x@a":               "percent-encode",
		"etcd://u:secret@a?password_file=":  "",
		"etcd://u:secret@a?password_file=f": "both",
		"etcd://u:sec/ret@a":                "percent-encode",
		"etcd://u:sec?ret@a":                "port",
		"etcd://u:sec#ret@a":                "#",
		"etcd://u:sec%ret@a":                "percent-encode",
	} {
		_, _, err := parse(raw)
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", raw, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %s", raw, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "sec") && strings.Contains(err.Error(), "ret") {
			t.Errorf("%s: the error shows the password: %v", raw, err)
		}
	}
}

func TestCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pw")
	u, _, err := parse("etcd://me@a?password_file=" + file)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := u.Credentials(); err == nil {
		t.Error("a file that is not there is no fault")
	}
	for _, pw := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(pw+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if user, got, err := u.Credentials(); user != "me" || got != pw || err != nil {
			t.Errorf("%q, %q, %v", user, got, err)
		}
	}
}

func TestUserAndPasswordBelongTogether(t *testing.T) {
	both := Spec{Schemes: []string{"x"}, Port: "1", NeedsUser: true, NeedsPassword: true}
	for raw, want := range map[string]string{
		"x://a":                     "",
		"x://u:p@a":                 "",
		"x://u@a?password_file=f":   "",
		"x://u@a":                   "a user but no password",
		"x://:p@a":                  "a password but no user",
		"x://a?password_file=f":     "a password but no user",
		"x://u:p@a?password_file=f": "both a password and password_file",
		"x://:p@a?password_file=f&": "both a password and password_file",
	} {
		_, err := Parse(raw, both)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, raw := range []string{"x://u@a", "x://:p@a"} {
		if _, err := Parse(raw, Spec{Schemes: []string{"x"}, Port: "1"}); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestText(t *testing.T) {
	spec := Spec{Schemes: []string{"x"}, Secure: []string{"xs"}, Port: "1", CanTLS: true,
		Timeout: time.Second}
	for raw, want := range map[string]string{
		"x://u:p@a":      "x://u:xxxxx@a:1",
		"x://a?tls=true": "x://a:1?tls=true",
	} {
		u, err := Parse(raw, spec)
		if err != nil || u.Timeout != time.Second {
			t.Fatal(err)
		}
		if got := u.Text(url.Values{}); got != want {
			t.Errorf("%s: %s", raw, got)
		}
		if got, want := u.Text(url.Values{"a": {"b"}}), "a=b"; !strings.Contains(got, want) {
			t.Errorf("%s: %s", raw, got)
		}
	}
	if got := (*URL)(nil).Text(nil); got != "" {
		t.Error(got)
	}
}
