package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/upstream/nearest"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// Kind is a kind of store.
type Kind string

// The kinds of stores.
const (
	KindEmbedded  Kind = "embedded"
	KindRedis     Kind = "redis"
	KindRedlock   Kind = "redlock"
	KindEtcd      Kind = "etcd"
	KindZooKeeper Kind = "zookeeper"
	KindMySQL     Kind = "mysql"
	KindPostgres  Kind = "postgres"
)

// schemes are the schemes of store URLs, in the order in which messages list them.
var schemes = []struct {
	scheme string
	kind   Kind
}{
	{"memory", KindEmbedded},
	{"redis", KindRedis}, {"rediss", KindRedis}, {"unix", KindRedis}, {"redis+unix", KindRedis},
	{"redis+sentinel", KindRedis}, {"rediss+sentinel", KindRedis}, {"redis+cluster", KindRedis},
	{"rediss+cluster", KindRedis},
	{"redlock", KindRedlock}, {"redlocks", KindRedlock},
	{"etcd", KindEtcd}, {"zookeeper", KindZooKeeper}, {"mysql", KindMySQL},
	{"postgres", KindPostgres}, {"postgresql", KindPostgres},
}

// Schemes lists the schemes that a store's URL may have.
func Schemes() (all []string) {
	for _, s := range schemes {
		all = append(all, s.scheme)
	}
	return all
}

// ParseUpstream returns the kind of store that a URL names. The driver reads the rest of the URL.
func ParseUpstream(raw string) (Kind, error) {
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok {
		if scheme == "memory" {
			return "", errors.New(`"memory" is not a URL; did you mean memory:?`)
		}
		return "", fmt.Errorf("%q is not a URL; for a Redis on this machine write "+
			"redis://localhost:6379",
			storeurl.Redact(raw))
	}
	if scheme == "memory" && rest != "" {
		return "", fmt.Errorf("memory: takes nothing after the colon, but it has %q",
			storeurl.Redact(rest))
	}
	for _, s := range schemes {
		if s.scheme == scheme {
			return s.kind, nil
		}
	}
	switch near := nearest.Of(scheme, Schemes()); near {
	case "":
	case "memory":
		return "", fmt.Errorf("unknown store %q; did you mean memory:?", scheme+":")
	default:
		return "", fmt.Errorf("unknown store %q; did you mean %s://?", scheme+":", near)
	}
	if port, _, _ := strings.Cut(rest, "/"); isPort(port) {
		return "", fmt.Errorf("%q is not a URL; for a Redis at that address write redis://%[1]s", raw)
	}
	return "", fmt.Errorf("unknown store %q; known are %s",
		scheme+":", strings.Join(Schemes(), ":, ")+":")
}

// isPort reports whether text is the number of a TCP port.
func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

// StoreSettings is the configuration of one store. Username and password apply if the URL has none.
type StoreSettings struct {
	Name         string // empty for the store in the top-level upstream
	Upstream     string // its URL
	Username     string
	Password     string
	PasswordFile string

	faulty bool // a fault in one of its fields has been reported
}

// URL returns the store's URL with the user and the password of the other fields. It may contain a
// secret.
func (s *StoreSettings) URL() string {
	return storeurl.With(s.Upstream, s.Username, s.Password, s.PasswordFile)
}

// path returns the path of a field of s in the file.
func (s *StoreSettings) path(field string) string {
	if s.Name == "" {
		return field
	}
	return "stores." + s.Name + "." + field
}

// passwords returns the names of the fields that set a password for s.
func (s *StoreSettings) passwords() (names []string) {
	if s.Password != "" {
		names = append(names, "password")
	}
	if s.PasswordFile != "" {
		names = append(names, "password_file")
	}
	if storeurl.NamesPassword(s.Upstream) {
		names = append(names, "upstream")
	}
	return names
}

// Store returns the store with that name; nil if there is none. The empty name and "default" mean
// the store in the top-level upstream.
func (c *Config) Store(name string) *StoreSettings {
	if name == "" || name == DefaultStore {
		return &c.Main
	}
	i := slices.IndexFunc(c.Stores, func(s *StoreSettings) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return c.Stores[i]
}

// DefaultStore is the name of the store in the top-level upstream.
const DefaultStore = "default"
