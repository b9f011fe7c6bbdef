package etcd

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// The values of a Config unless its URL gives others.
const (
	DefaultPrefix  = "/locksidecar"
	DefaultTTL     = 10 * time.Second
	DefaultTimeout = 2 * time.Second
)

// Config names an etcd and says how to use it. Parse makes it from a URL.
type Config struct {
	driverkit.Options
	url *storeurl.URL

	Endpoints []string      // host:port of members, at least one
	Prefix    string        // of the keys; etcdctl's name for the lock NAME is Prefix/NAME
	TTL       time.Duration // of the daemon's lease, in whole seconds
	Timeout   time.Duration // of one batch, and of one keep-alive
}

// Parse reads etcd://[user:password@]host[:port][,host[:port]…] with the parameters prefix, ttl,
// timeout, password_file, and for TLS tls, ca, cert, key and server_name. It connects to nothing
// and opens no file. Its errors are ErrConfig and show no secret.
func Parse(raw string) (Config, error) {
	c := Config{Prefix: DefaultPrefix, TTL: DefaultTTL}
	u, err := storeurl.Parse(raw, storeurl.Spec{
		Schemes: []string{"etcd"}, Port: "2379", CanTLS: true, Timeout: DefaultTimeout,
		NeedsUser: true, NeedsPassword: true,
		Params: map[string]func(string) error{
			"prefix": storeurl.Text(&c.Prefix),
			"ttl":    storeurl.Duration(&c.TTL, time.Second, time.Hour),
		},
	})
	if err == nil {
		c.url, c.Endpoints, c.Timeout = u, u.Hosts, u.Timeout
		err = c.check()
	}
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

func (c *Config) check() error {
	switch {
	case c.url.Path != "":
		return errors.New("there can be no path in it (prefix= says where the locks are)")
	case c.Prefix == "" || strings.HasSuffix(c.Prefix, "/"):
		return fmt.Errorf("parameter prefix: %q is empty or ends in a slash", c.Prefix)
	case c.TTL%time.Second != 0:
		return fmt.Errorf("parameter ttl: %v is not in whole seconds, as etcd counts them", c.TTL)
	}
	return nil
}

// String returns the URL without its secrets.
func (c Config) String() string {
	q := url.Values{"prefix": {c.Prefix}, "ttl": {c.TTL.String()}, "timeout": {c.Timeout.String()}}
	return c.url.Text(q)
}

// addr names the store in errors.
func (c *Config) addr() string { return strings.Join(c.Endpoints, ",") }
