package zookeeper_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

func TestURLs(t *testing.T) {
	for url, want := range map[string]zookeeper.Config{
		"zookeeper://a": {Servers: []string{"a:2181"},
			Session: 10 * time.Second, Timeout: 2 * time.Second, Open: true},
		"zookeeper://a,b:1,[::1]:2/x/y/": {Servers: []string{"a:2181", "b:1", "[::1]:2"},
			Chroot: "/x/y", Session: 10 * time.Second, Timeout: 2 * time.Second, Open: true},
		"zookeeper://a/?session=4s": {Servers: []string{"a:2181"},
			Session: 4 * time.Second, Timeout: time.Second, Open: true},
		"zookeeper://u:s3cret@a": {Servers: []string{"a:2181"},
			Session: 10 * time.Second, Timeout: 2 * time.Second},
		"zookeeper://u@a?password_file=p&acl=open": {Servers: []string{"a:2181"},
			Session: 10 * time.Second, Timeout: 2 * time.Second, Open: true},
		"zookeeper://a/l%C3%A4?timeout=300ms": {Servers: []string{"a:2181"}, Chroot: "/lä",
			Session: 10 * time.Second, Timeout: 300 * time.Millisecond, Open: true},
		"zookeeper://a?tls=true&server_name=b&acl=open": {Servers: []string{"a:2181"},
			Session: 10 * time.Second, Timeout: 2 * time.Second,
			Open: true},
	} {
		c, err := zookeeper.Parse(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if strings.Join(c.Servers, ",") != strings.Join(want.Servers, ",") || c.Chroot != want.Chroot ||
			c.Session != want.Session ||
			c.Timeout != want.Timeout || c.Open != want.Open {
			t.Errorf("%s is %+v", url, c)
		}
		if s := c.String(); strings.Contains(s, "s3cret") || !strings.HasPrefix(s, "zookeeper://") {
			t.Errorf("%s prints as %s", url, s)
		}
	}
}

func TestBadURLs(t *testing.T) {
	for url, says := range map[string]string{
		"zookeeper:a":                               "scheme://",
		"zk://a":                                    "zookeeper",
		"zookeeper://":                              "no host",
		"zookeeper://a,":                            "no host",
		"zookeeper://a:x":                           "port",
		"zookeeper://a,a":                           "duplicate",
		"zookeeper://a?session=1ms":                 "session",
		"zookeeper://a?sesion=10s":                  "sesion",
		"zookeeper://a?session=2s&timeout=2s":       "half of the session",
		"zookeeper://a//b":                          "empty element",
		"zookeeper://a/b/../c":                      `".."`,
		"zookeeper://a/.locksidecar":                ".locksidecar",
		"zookeeper://a/zookeeper/quota":             "/zookeeper",
		"zookeeper://a/b%00":                        "does not allow",
		"zookeeper://u@a":                           "no password",
		"zookeeper://:s3cret@a":                     "no user",
		"zookeeper://u:s3cret@a?acl=some":           "acl",
		"zookeeper://a?acl=creator":                 "acl",
		"zookeeper://a?ca=x":                        "tls=true",
		"zookeeper://u%3Av:s3cret@a":                "colon",
		"zookeeper://a/" + strings.Repeat("x", 300): "longer",
		"zookeeper://u:s3cret@a?password_file=/etc/locksidecar/pass": "both",
	} {
		_, err := zookeeper.Parse(url)
		if !errors.Is(err, zookeeper.ErrConfig) {
			t.Errorf("%s: %v", url, err)
		}
		says1(t, url, err, says)
	}
}

func says1(t *testing.T, url string, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%s: %v", url, err)
	}
}
