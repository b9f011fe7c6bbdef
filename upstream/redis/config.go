package redis

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// The values of a Config unless its URL gives others.
const (
	DefaultPrefix      = "lock:"
	DefaultTimeout     = time.Second
	DefaultWaiterLease = 3 * time.Second
)

// Secret is a password. It never shows itself when printed or marshalled.
type Secret = storeurl.Secret

// Kind is the kind of Redis that a URL names.
type Kind uint8

// The kinds.
const (
	Standalone Kind = iota // one server
	Sentinel               // a master, which sentinels name
	Cluster                // masters that share the slots
)

// Config names a Redis and says how to use it. Parse makes it from a URL.
type Config struct {
	driverkit.Options
	storeurl.URL
	Kind    Kind
	Network string // "tcp" or "unix"
	Addr    string // host:port, or the socket's path; of Sentinel and Cluster all hosts of the URL
	Master  string // the sentinels' name for it
	DB      int

	SentinelUser         string
	SentinelPasswordFile string // read anew for each connection to a sentinel
	SentinelPlain        bool   // no TLS to the sentinels although there is to the master

	Prefix string // of the locks' names
	// WaiterLease is the time after which a host that does not repeat its join leaves the queue.
	WaiterLease   time.Duration
	AllowEviction bool // use a server that may evict locks
	// MinUptime makes the store refuse every op while its server has run for less, or does not
	// report its uptime. The errors say how long that will last. Among several independent servers,
	// one that may have forgotten its locks must not vote until all of these have expired. The URL
	// does not set it.
	MinUptime time.Duration

	WaitReplicas int           // the number of replicas that must have each grant and renewal
	WaitAOF      AOF           // the servers that must have it on disk
	WaitTimeout  time.Duration // the longest wait for both; half of Timeout unless given
}

// AOF says which servers must have a write on disk.
type AOF struct {
	Local    bool // the master
	Replicas int
}

// String returns the value of the parameter wait_aof.
func (a AOF) String() string {
	var s []string
	if a.Local {
		s = append(s, "local")
	}
	if a.Replicas > 0 {
		s = append(s, strconv.Itoa(a.Replicas))
	}
	return strings.Join(s, ",")
}

func (a *AOF) set(v string) error {
	first, rest, both := strings.Cut(v, ",")
	a.Local = first == "local"
	if a.Local && !both {
		return nil
	}
	if !a.Local {
		rest = first
	}
	n, err := strconv.Atoi(rest)
	if err != nil || n < 1 || n > 100 || both && !a.Local {
		return fmt.Errorf("%q is none of local, a number of replicas, or local,N", v)
	}
	a.Replicas = n
	return nil
}

// The forms of URLs, by scheme.
var forms = []struct {
	kind    Kind
	network string
	spec    storeurl.Spec
}{
	{Standalone, "tcp", storeurl.Spec{Schemes: []string{"redis"}, Secure: []string{"rediss"},
		Port: "6379"}},
	{Standalone, "unix", storeurl.Spec{Schemes: []string{"redis+unix", "unix"}}},
	{Sentinel, "tcp", storeurl.Spec{Schemes: []string{"redis+sentinel"},
		Secure: []string{"rediss+sentinel"}, Port: "26379"}},
	{Cluster, "tcp", storeurl.Spec{Schemes: []string{"redis+cluster"},
		Secure: []string{"rediss+cluster"}, Port: "6379"}},
}

// Parse reads
//
//	redis://[user[:password]@]host[:port][/db]          rediss:// with TLS
//	redis+unix:///path, unix:///path
//	redis+sentinel://[user[:password]@]host[:port],…/master[/db]    rediss+sentinel://
//	redis+cluster://[user[:password]@]host[:port],…                 rediss+cluster://
//
// with the parameters timeout, password_file, prefix, db (not of a cluster),
// waiter_lease, allow_eviction, wait_replicas, wait_aof, wait_timeout; for TLS ca,
// cert, key and server_name; for Sentinel sentinel_user, sentinel_password_file and
// sentinel_tls. It connects to nothing and opens no file. Its errors are ErrConfig
// and show no secret.
func Parse(raw string) (Config, error) {
	c, err := parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

func parse(raw string) (Config, error) {
	c := Config{Prefix: DefaultPrefix, WaiterLease: DefaultWaiterLease}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return c, errors.New("it needs the form scheme://…, such as redis://host:6379")
	}
	rest, _, _ = strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if authority != "" && !strings.Contains(authority, "@") && strings.Contains(path, "@") {
		// The text before the slash may be a part of a password, so the error must not show it.
		return c, errors.New("user or password is malformed (in a password, percent-encode all " +
			"but letters and digits)")
	}
	var known []string
	for i := range forms {
		f := &forms[i]
		names := slices.Concat(f.spec.Schemes, f.spec.Secure)
		if known = append(known, names...); !slices.Contains(names, scheme) {
			continue
		}
		c.Kind, c.Network = f.kind, f.network
		spec := f.spec
		spec.Params, spec.Timeout, spec.NeedsPassword = c.params(), DefaultTimeout, true
		u, err := storeurl.Parse(raw, spec)
		if err != nil {
			return c, err
		}
		c.URL = *u
		return c, c.check()
	}
	return c, fmt.Errorf("scheme %q is none of %s", scheme, strings.Join(known, ", "))
}

func (c *Config) params() map[string]func(string) error {
	p := map[string]func(string) error{
		"prefix":         storeurl.Text(&c.Prefix),
		"waiter_lease":   storeurl.Duration(&c.WaiterLease, time.Second, time.Minute),
		"allow_eviction": storeurl.Bool(&c.AllowEviction),
		"wait_replicas":  storeurl.Int(&c.WaitReplicas, 0, 100),
		"wait_aof":       c.WaitAOF.set,
		"wait_timeout":   storeurl.Duration(&c.WaitTimeout, time.Millisecond, time.Minute),
	}
	if c.Kind != Cluster {
		p["db"] = c.setDB
	}
	if c.Kind == Sentinel {
		p["sentinel_user"] = storeurl.Text(&c.SentinelUser)
		p["sentinel_password_file"] = storeurl.Text(&c.SentinelPasswordFile)
		p["sentinel_tls"] = func(v string) error {
			on := true
			err := storeurl.Bool(&on)(v)
			c.SentinelPlain = !on
			return err
		}
	}
	return p
}

func (c *Config) setDB(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return fmt.Errorf("database %q is not a number", s)
	}
	c.DB = int(n)
	return nil
}

// check splits the path, and checks what several parts of c have in common.
func (c *Config) check() error {
	if c.WaitTimeout == 0 {
		c.WaitTimeout = c.Timeout / 2
	} else if c.WaitReplicas == 0 && c.WaitAOF == (AOF{}) {
		return errors.New("wait_timeout needs wait_replicas or wait_aof")
	}
	if c.WaitTimeout >= c.Timeout {
		return fmt.Errorf("wait_timeout (%v) has to be shorter than timeout (%v)",
			c.WaitTimeout, c.Timeout)
	}
	if strings.HasPrefix(c.Prefix, siblingPrefix) {
		return fmt.Errorf("parameter prefix: %q is reserved", siblingPrefix)
	}
	if c.SentinelUser != "" && c.SentinelPasswordFile == "" {
		return errors.New("there is a sentinel_user but no sentinel_password_file")
	}
	if c.Kind == Standalone && len(c.Hosts) > 1 {
		return errors.New("it names several hosts: redis+sentinel://, redis+cluster:// and " +
			"redlock:// take more than one")
	}
	c.Addr = strings.Join(c.Hosts, ",")
	return c.checkPath()
}

func (c *Config) checkPath() error {
	if c.Network == "unix" {
		c.Addr = c.Path
		return nil
	}
	db := strings.Trim(c.Path, "/")
	switch c.Kind {
	case Cluster:
		if db != "" && db != "0" {
			return errors.New("a cluster has no databases but 0")
		}
		return nil
	case Sentinel:
		c.Master, db, _ = strings.Cut(db, "/")
		if c.Master == "" {
			return fmt.Errorf("it needs the form %s://host,host/MASTERNAME, with the name that "+
				"the sentinels know the master by", c.Scheme)
		}
	}
	if db == "" {
		return nil
	}
	return c.setDB(db)
}

// String returns the URL without its secrets.
func (c Config) String() string {
	u, q := c.URL, url.Values{"prefix": {c.Prefix}}
	switch {
	case c.Network == "unix":
		u.Scheme = "redis+unix"
		q.Set("db", strconv.Itoa(c.DB))
	case c.Kind == Sentinel:
		u.Path = "/" + c.Master + "/" + strconv.Itoa(c.DB)
	case c.Kind == Standalone:
		u.Path = "/" + strconv.Itoa(c.DB)
	default:
		u.Path = ""
	}
	if c.WaitReplicas > 0 {
		q.Set("wait_replicas", strconv.Itoa(c.WaitReplicas))
	}
	if c.WaitAOF != (AOF{}) {
		q.Set("wait_aof", c.WaitAOF.String())
	}
	return u.Text(q)
}
