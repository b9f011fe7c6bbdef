package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Kind is a kind of store.
type Kind string

// The kinds of this version.
const (
	KindEmbedded Kind = "embedded"
	KindRedis    Kind = "redis"
)

var (
	redisSchemes = []string{"redis", "rediss", "unix", "redis+unix"}
	laterSchemes = []string{"redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
		"redlock", "etcd", "zookeeper", "mysql"}
)

// ParseUpstream says what kind of store a URL names. What is behind the scheme is
// the driver's to read.
func ParseUpstream(raw string) (Kind, error) {
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok {
		return "", fmt.Errorf("%q is not a URL; for a Redis on this machine write redis://localhost:6379", Redacted(raw))
	}
	switch {
	case scheme == "memory":
		if rest != "" {
			return "", fmt.Errorf("nothing can stand behind memory:, but %q does", Redacted(rest))
		}
		return KindEmbedded, nil
	case slices.Contains(redisSchemes, scheme):
		return KindRedis, nil
	case slices.Contains(laterSchemes, scheme):
		return "", fmt.Errorf("%s: is not in this version; it knows memory:, redis://, rediss:// and unix://", scheme)
	}
	return "", fmt.Errorf("unknown store %q; this version knows memory:, redis://, rediss:// and unix://", scheme+":")
}

// RedisURL is the store's URL, with the user and the password that stand beside
// it. It may hold a secret.
func (c *Config) RedisURL() string {
	u, err := url.Parse(c.Upstream)
	if err != nil {
		return c.Upstream // the driver says what is wrong with it
	}
	name := u.User.Username()
	if name == "" {
		name = c.Redis.Username
	}
	switch pw, inURL := u.User.Password(); {
	case inURL:
		u.User = url.UserPassword(name, pw)
	case c.Redis.Password != "":
		u.User = url.UserPassword(name, c.Redis.Password)
	case name != "":
		u.User = url.User(name)
	}
	if c.Redis.PasswordFile != "" {
		if u.RawQuery != "" {
			u.RawQuery += "&"
		}
		u.RawQuery += url.Values{"password_file": {c.Redis.PasswordFile}}.Encode()
	}
	return u.String()
}

// parse reads a URL; nil for what is none. mute says that a password may be in it
// where nobody can tell.
func parse(raw string) (u *url.URL, mute bool) {
	u, err := url.Parse(raw)
	if err != nil {
		u = nil
	}
	return u, (u == nil || u.Host == "") && strings.Contains(raw, "@")
}

// Redacted is a URL without its password, for people to see. What is not a URL
// and may have one in it is not shown at all.
func Redacted(raw string) string {
	u, mute := parse(raw)
	switch {
	case mute:
		return "(not a URL)"
	case u == nil:
		return raw
	}
	return u.Redacted()
}

// hasPassword says whether a URL has a password, or may have one as far as can be
// told, or names a file with one.
func hasPassword(raw string) bool {
	u, _ := parse(raw)
	return secretIn(raw) || u != nil && u.Query().Has("password_file")
}

// secretIn says whether a password stands in a URL itself.
func secretIn(raw string) bool {
	u, mute := parse(raw)
	if mute || u == nil {
		return mute
	}
	_, set := u.User.Password()
	return set
}
