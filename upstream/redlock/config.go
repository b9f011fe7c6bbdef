package redlock

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/upstream/storeurl"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// The values of a Config unless its URL gives others.
const (
	DefaultPrefix  = "lock:"
	DefaultTimeout = 500 * time.Millisecond
	DefaultMaxTTL  = time.Minute
	DefaultDrift   = 0.01
)

// The limits of the number of nodes.
const (
	minNodes = 3
	maxNodes = 15
)

// ErrConfig means that a store URL is malformed.
var ErrConfig, _, _, _, _ = driverkit.Errors("redlock")

// Config names the nodes and says how to use them. Parse makes it from a URL.
type Config struct {
	driverkit.Options
	URL *storeurl.URL // hosts, user, password, TLS
	DB  int

	Prefix  string        // of the locks' names
	Timeout time.Duration // of one node's answer; an Apply may take three of them
	// MaxTTL is the longest TTL of any lease. A longer TTL is refused, and a node that restarted does
	// not vote for as long. The caller sets it to the longest configured TTL. A value in the URL takes
	// precedence (MaxTTLSet).
	MaxTTL    time.Duration
	MaxTTLSet bool // the URL has max_ttl
	// Drift is the largest difference in speed between the clocks of two machines, as a fraction. A
	// deadline is always 1 % earlier than the TTL. A larger drift lengthens the nodes' TTLs.
	Drift         float64
	AllowEviction bool // use nodes that may evict locks

	grace time.Duration // for tests, instead of graceMin
	seed  uint64        // for tests: the seed of the store's random numbers
}

// Parse reads redlock://[user[:password]@]a[:6379],b,c[/db] and redlocks:// (TLS), with the
// parameters prefix, timeout, max_ttl, drift, allow_eviction and password_file, and for TLS ca,
// cert, key and server_name. It connects to nothing and opens no file. Its errors are ErrConfig and
// show no secret.
func Parse(raw string) (Config, error) {
	c := Config{Prefix: DefaultPrefix, Drift: DefaultDrift}
	u, err := storeurl.Parse(raw, storeurl.Spec{
		Schemes: []string{"redlock"}, Secure: []string{"redlocks"}, Port: "6379", Timeout: DefaultTimeout,
		NeedsPassword: true,
		Params: map[string]func(string) error{
			"prefix":         storeurl.Text(&c.Prefix),
			"max_ttl":        storeurl.Duration(&c.MaxTTL, time.Second, 24*time.Hour),
			"drift":          c.setDrift,
			"allow_eviction": storeurl.Bool(&c.AllowEviction),
		},
	})
	if err == nil {
		c.URL, c.Timeout = u, u.Timeout
		err = c.check()
	}
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

func (c *Config) setDrift(v string) error {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f > 0.1 {
		return fmt.Errorf("%q is not a part between 0 and 0.1, such as 0.02", v)
	}
	c.Drift = f
	return nil
}

// check checks the values of the URL, and sets the defaults.
func (c *Config) check() error {
	switch n := len(c.URL.Hosts); {
	case n < minNodes || n > maxNodes:
		return fmt.Errorf("it takes an odd number of nodes from %d to %d, not %d", minNodes, maxNodes, n)
	case n%2 == 0:
		return fmt.Errorf("%d nodes are named: an even number bears the loss of no more nodes "+
			"than %d do; take one away or add one", n, n-1)
	}
	if path := strings.Trim(c.URL.Path, "/"); path != "" {
		n, err := strconv.ParseUint(path, 10, 16)
		if err != nil {
			return fmt.Errorf("database %q is not a number", path)
		}
		c.DB = int(n)
	}
	if strings.HasPrefix(c.Prefix, "locksidecar:") {
		return errors.New(`parameter prefix: "locksidecar:" is reserved`)
	}
	c.MaxTTLSet = c.MaxTTL != 0
	if !c.MaxTTLSet {
		c.MaxTTL = DefaultMaxTTL
	}
	return nil
}

// SetMaxTTL sets the longest configured TTL, unless the URL has one.
func (c *Config) SetMaxTTL(d time.Duration) {
	if !c.MaxTTLSet {
		c.MaxTTL = d
	}
}

// String returns the URL without its secrets.
func (c Config) String() string {
	q := url.Values{"prefix": {c.Prefix}, "max_ttl": {c.MaxTTL.String()}}
	return c.URL.Text(q)
}

// Member has the parameters of a node's store.
type Member struct {
	Host string // host:port
	// URL is the redis:// or rediss:// URL of the node, with the secrets.
	URL string
	// Instance is the instance id that all nodes' tokens have in common.
	Instance string
	// MinUptime is how long a server must have run before it votes.
	MinUptime time.Duration
}

// String and GoString return the member without its secrets.
func (m Member) String() string   { return "node " + m.Host }
func (m Member) GoString() string { return m.String() }

// member returns the node at host.
func (c *Config) member(host, instance string) Member {
	u := url.URL{Scheme: "redis", Host: host, Path: "/" + strconv.Itoa(c.DB)}
	q := url.Values{"prefix": {c.Prefix}, "timeout": {c.Timeout.String()}}
	set := func(name, v string) {
		if v != "" {
			q.Set(name, v)
		}
	}
	if t := c.URL.TLS; t.On {
		u.Scheme = "rediss"
		set("ca", t.CA)
		set("cert", t.Cert)
		set("key", t.Key)
		set("server_name", t.ServerName)
	}
	if c.AllowEviction {
		q.Set("allow_eviction", "true")
	}
	set("password_file", c.URL.PasswordFile)
	switch {
	case c.URL.Password != "":
		u.User = url.UserPassword(c.URL.User, string(c.URL.Password))
	case c.URL.User != "":
		u.User = url.User(c.URL.User)
	}
	u.RawQuery = q.Encode()
	uptime := c.MaxTTL + time.Duration(float64(c.MaxTTL)*c.Drift)
	return Member{Host: host, URL: u.String(), Instance: instance, MinUptime: uptime}
}
