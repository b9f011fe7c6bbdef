package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// Kind is a kind of store.
type Kind string

// The kinds.
const (
	KindEmbedded  Kind = "embedded"
	KindRedis     Kind = "redis"
	KindRedlock   Kind = "redlock"
	KindEtcd      Kind = "etcd"
	KindZooKeeper Kind = "zookeeper"
	KindMySQL     Kind = "mysql"
)

// schemes are the URLs' beginnings, each kind's in the order in which people
// should hear of them.
var schemes = []struct {
	scheme string
	kind   Kind
}{
	{"memory", KindEmbedded},
	{"redis", KindRedis}, {"rediss", KindRedis}, {"unix", KindRedis}, {"redis+unix", KindRedis},
	{"redis+sentinel", KindRedis}, {"rediss+sentinel", KindRedis}, {"redis+cluster", KindRedis}, {"rediss+cluster", KindRedis},
	{"redlock", KindRedlock}, {"redlocks", KindRedlock},
	{"etcd", KindEtcd}, {"zookeeper", KindZooKeeper}, {"mysql", KindMySQL},
}

// Schemes lists the schemes that a store's URL may have.
func Schemes() (all []string) {
	for _, s := range schemes {
		all = append(all, s.scheme)
	}
	return all
}

// ParseUpstream says what kind of store a URL names. What is behind the scheme is
// the driver's to read.
func ParseUpstream(raw string) (Kind, error) {
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok {
		return "", fmt.Errorf("%q is not a URL; for a Redis on this machine write redis://localhost:6379", storeurl.Redact(raw))
	}
	if scheme == "memory" && rest != "" {
		return "", fmt.Errorf("nothing can stand behind memory:, but %q does", storeurl.Redact(rest))
	}
	for _, s := range schemes {
		if s.scheme == scheme {
			return s.kind, nil
		}
	}
	return "", fmt.Errorf("unknown store %q; known are %s", scheme+":", strings.Join(Schemes(), ":, ")+":")
}

// Store is one store: where it is, and who we are to it where the URL does not
// say so.
type Store struct {
	Name         string // empty for the one that upstream names
	Upstream     string // its URL
	Username     string
	Password     string
	PasswordFile string

	faulty bool // a fault in one of its fields has been reported
}

// URL is the store's URL with the user and the password that stand beside it. It
// may hold a secret.
func (s *Store) URL() string {
	return storeurl.With(s.Upstream, s.Username, s.Password, s.PasswordFile)
}

// passwords lists the settings that give a password for s, by their names.
func (s *Store) passwords() (names []string) {
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

// Store returns the store of that name; nil when there is none. The empty name
// and "default" are the one that upstream names.
func (c *Config) Store(name string) *Store {
	if name == "" || name == DefaultStore {
		return &c.Main
	}
	i := slices.IndexFunc(c.Stores, func(s *Store) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return c.Stores[i]
}

// DefaultStore is the name of the store that upstream names.
const DefaultStore = "default"
