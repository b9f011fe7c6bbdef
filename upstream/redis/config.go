package redis

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The environment that Parse reads when the URL has no password.
const (
	envUser         = "LOCKSIDECAR_REDIS_USERNAME"
	envPassword     = "LOCKSIDECAR_REDIS_PASSWORD"
	envPasswordFile = "LOCKSIDECAR_REDIS_PASSWORD_FILE"
)

// What a Config has unless its URL says otherwise.
const (
	DefaultPrefix      = "lock:"
	DefaultTimeout     = time.Second
	DefaultWaiterLease = 3 * time.Second
)

// Secret is a password. It never shows itself when printed or marshalled.
type Secret string

// String is what is printed in its stead.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "xxxxx"
}

// GoString is what is printed in its stead.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText is what is marshalled in its stead.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Config says which Redis to use and how. Parse makes it from a URL.
type Config struct {
	Network string // "tcp" or "unix"
	Addr    string // host:port, or the socket's path
	DB      int

	User         string
	Password     Secret
	PasswordFile string // read anew for every connection, so that a password can change

	TLS        bool
	CA         string // file with the certificates to trust instead of the system's
	Cert, Key  string // files with our own certificate and its key
	ServerName string // expected in the server's certificate instead of the host

	Prefix        string        // of the locks' names
	Timeout       time.Duration // of one batch, and of connecting
	WaiterLease   time.Duration // after which a host that does not repeat itself drops out of queues
	AllowEviction bool          // use a server that may evict locks
}

var params = []string{"prefix", "db", "timeout", "waiter_lease", "allow_eviction", "password_file",
	"ca", "cert", "key", "server_name"}

// Parse understands redis://[user[:password]@]host[:port][/db], rediss:// (TLS)
// and redis+unix:///path or unix:///path, with the parameters prefix, db,
// timeout, waiter_lease, allow_eviction, password_file, and for TLS ca, cert, key
// and server_name. A password that is not in the URL is taken from
// LOCKSIDECAR_REDIS_PASSWORD or the file named by LOCKSIDECAR_REDIS_PASSWORD_FILE.
// It connects to nothing and opens no file; its errors are ErrConfig and show no
// secret.
func Parse(raw string) (Config, error) {
	c, err := parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

func parse(raw string) (Config, error) {
	u, err := url.Parse(raw)
	if err != nil {
		// net/url's own error quotes the URL, password and all.
		return Config{}, fmt.Errorf("it is not a well-formed URL (in a password, percent-encode what is not a letter or digit)")
	}
	c := Config{Network: "tcp", Prefix: DefaultPrefix, Timeout: DefaultTimeout, WaiterLease: DefaultWaiterLease}
	switch u.Scheme {
	case "redis":
	case "rediss":
		c.TLS = true
	case "redis+unix", "unix":
		c.Network = "unix"
	default:
		return Config{}, fmt.Errorf("scheme %q is none of redis, rediss, redis+unix, unix", u.Scheme)
	}
	if u.Fragment != "" || u.Opaque != "" {
		return Config{}, fmt.Errorf("it needs the form %s://…, without #", u.Scheme)
	}
	if err := c.parseAddr(u); err != nil {
		return Config{}, err
	}
	if err := c.parseQuery(u); err != nil {
		return Config{}, err
	}
	if err := c.parseSecrets(u); err != nil {
		return Config{}, err
	}
	return c, c.check()
}

func (c *Config) parseAddr(u *url.URL) error {
	if c.Network == "unix" {
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") || u.Path == "/" {
			return fmt.Errorf("a Unix socket needs the form %s:///path", u.Scheme)
		}
		c.Addr = u.Path
		return nil
	}
	host, port := u.Hostname(), u.Port()
	if host == "" {
		return fmt.Errorf("there is no host in it")
	}
	if port == "" {
		port = "6379"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q is not a port", port)
	}
	c.Addr = net.JoinHostPort(host, port)
	if db := strings.Trim(u.Path, "/"); db != "" {
		return c.setDB(db)
	}
	return nil
}

func (c *Config) setDB(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return fmt.Errorf("database %q is not a number", s)
	}
	c.DB = int(n)
	return nil
}

func (c *Config) parseQuery(u *url.URL) error {
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("what follows the ? is not well-formed")
	}
	for name, vs := range q {
		if !slices.Contains(params, name) {
			return fmt.Errorf("parameter %q is unknown (known: %s)", name, strings.Join(params, ", "))
		}
		if len(vs) != 1 {
			return fmt.Errorf("parameter %q stands there twice", name)
		}
		if err := c.set(name, vs[0]); err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	return nil
}

func (c *Config) set(name, v string) (err error) {
	switch name {
	case "prefix":
		c.Prefix = v
	case "db":
		err = c.setDB(v)
	case "timeout":
		c.Timeout, err = duration(v, 10*time.Millisecond, time.Minute)
	case "waiter_lease":
		c.WaiterLease, err = duration(v, time.Second, time.Minute)
	case "allow_eviction":
		if c.AllowEviction, err = strconv.ParseBool(v); err != nil {
			err = fmt.Errorf("%q is neither true nor false", v)
		}
	case "password_file":
		c.PasswordFile = v
	case "ca":
		c.CA = v
	case "cert":
		c.Cert = v
	case "key":
		c.Key = v
	case "server_name":
		c.ServerName = v
	}
	return err
}

func duration(s string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 500ms or 2s", s)
	}
	if d < least || d > most {
		return 0, fmt.Errorf("%v is not between %v and %v", d, least, most)
	}
	return d, nil
}

func (c *Config) parseSecrets(u *url.URL) error {
	c.User = u.User.Username()
	pw, ok := u.User.Password()
	switch {
	case ok && c.PasswordFile != "":
		return fmt.Errorf("there is both a password and password_file in it")
	case ok:
		c.Password = Secret(pw)
	case c.PasswordFile != "":
	case os.Getenv(envPasswordFile) != "" && os.Getenv(envPassword) != "":
		return fmt.Errorf("both %s and %s are set", envPassword, envPasswordFile)
	default:
		c.PasswordFile = os.Getenv(envPasswordFile)
		c.Password = Secret(os.Getenv(envPassword))
	}
	if c.User == "" {
		c.User = os.Getenv(envUser)
	}
	if c.User != "" && c.Password == "" && c.PasswordFile == "" {
		return fmt.Errorf("there is a user but no password for it (password_file=, %s, %s)", envPassword, envPasswordFile)
	}
	return nil
}

func (c *Config) check() error {
	if strings.HasPrefix(c.Prefix, siblingPrefix) {
		return fmt.Errorf("parameter prefix: %q is reserved", siblingPrefix)
	}
	if !c.TLS && (c.CA != "" || c.Cert != "" || c.Key != "" || c.ServerName != "") {
		return fmt.Errorf("ca, cert, key and server_name are for rediss:// only")
	}
	if (c.Cert == "") != (c.Key == "") {
		return fmt.Errorf("cert and key belong together")
	}
	return nil
}

// String is the URL without its secrets.
func (c Config) String() string {
	u := url.URL{Scheme: "redis", Host: c.Addr, Path: "/" + strconv.Itoa(c.DB)}
	q := url.Values{"prefix": {c.Prefix}}
	switch {
	case c.Network == "unix":
		u.Scheme, u.Host, u.Path = "redis+unix", "", c.Addr
		q.Set("db", strconv.Itoa(c.DB))
	case c.TLS:
		u.Scheme = "rediss"
	}
	if c.User != "" {
		u.User = url.User(c.User)
	}
	if c.Password != "" {
		u.User = url.UserPassword(c.User, c.Password.String())
	}
	u.RawQuery = q.Encode()
	return u.String()
}
