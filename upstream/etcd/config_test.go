package etcd_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/upstream/etcd"
)

func TestParse(t *testing.T) {
	c, err := etcd.Parse("etcd://me:s%40cret@a,b:1234,[::1]?prefix=/x&ttl=30s&timeout=5s&tls=true&ca=/ca")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Endpoints, []string{"a:2379", "b:1234", "[::1]:2379"}) || c.Prefix != "/x" ||
		c.TTL != 30*time.Second || c.Timeout != 5*time.Second {
		t.Errorf("it is %+v", c)
	}
	for _, s := range []string{c.String(), fmt.Sprintf("%v %+v %#v", c, c, c)} {
		if strings.Contains(s, "s@cret") || strings.Contains(s, "s%40cret") {
			t.Errorf("printing it shows the password: %s", s)
		}
	}
	if want := "etcd://me:xxxxx@a:2379,b:1234,[::1]:2379?prefix=%2Fx&timeout=5s&tls=true&ttl=30s"; c.String() != want {
		t.Errorf("it prints %s, not %s", c, want)
	}
	if c, err = etcd.Parse("etcd://a"); err != nil || c.Prefix != etcd.DefaultPrefix ||
		c.TTL != etcd.DefaultTTL || c.Timeout != etcd.DefaultTimeout {
		t.Errorf("by default it is %+v, %v", c, err)
	}
}

func TestParseFaults(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://a":                        "scheme",
		"etcd://":                          "no host",
		"etcd://a/locks":                   "prefix=",
		"etcd://a?prefix=":                 "prefix",
		"etcd://a?prefix=/x/":              "slash",
		"etcd://a?ttl=500ms":               "between",
		"etcd://a?ttl=1500ms":              "whole seconds",
		"etcd://a?ca=x":                    "tls=true",
		"etcd://me@a":                      "no password",
		"etcd://:s3cret@a":                 "no user",
		"etcd://a?password_file=x":         "no user",
		"etcd://me:s3cret@a?x=1":           "unknown (known: ca, cert, key, password_file, prefix, server_name, timeout, tls, ttl)",
		"etcd://me:s3cret@a?timeout=1":     "duration",
		"etcd://me:s3cret@a?tls=perhaps":   "neither true nor false",
		"etcd://me:s3cret@a,a":             "duplicate",
		"etcd://me:s3cret@a?password_file": "",
	} {
		_, err := etcd.Parse(raw)
		if want == "" {
			continue
		}
		if !errors.Is(err, etcd.ErrConfig) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, not %s", raw, err, want)
		}
	}
}
