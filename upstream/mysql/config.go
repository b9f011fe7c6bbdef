package mysql

import (
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// What a Config has unless its URL says otherwise.
const (
	DefaultTable       = "locksidecar"
	DefaultTimeout     = 2 * time.Second
	DefaultWaiterLease = 3 * time.Second
	DefaultPoll        = 100 * time.Millisecond
)

// Config says which server to use and how. Parse makes it from a URL.
type Config struct {
	URL      *storeurl.URL // its address, user, password and TLS
	Database string
	Table    string
	Prefix   string // of the locks' names in the table

	Timeout     time.Duration // of one batch, and of connecting
	WaiterLease time.Duration // after which a host that does not repeat itself drops out of queues
	Poll        time.Duration // how often it is looked whether what is waited for has come free
}

var tableName = regexp.MustCompile(`^[A-Za-z0-9_$]{1,64}$`)

// Parse understands mysql://[user[:password]@]host[:port]/database with the
// parameters table, prefix, timeout, waiter_lease, poll, password_file, tls, ca,
// cert, key and server_name. It connects to nothing and opens no file; its errors
// are ErrConfig and show no secret.
func Parse(raw string) (Config, error) {
	c, err := parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

func parse(raw string) (Config, error) {
	c := Config{Table: DefaultTable, Timeout: DefaultTimeout, WaiterLease: DefaultWaiterLease, Poll: DefaultPoll}
	u, err := storeurl.Parse(raw, storeurl.Spec{Schemes: []string{"mysql"}, Port: "3306", CanTLS: true,
		Params: map[string]func(string) error{
			"table":        storeurl.Text(&c.Table),
			"prefix":       storeurl.Text(&c.Prefix),
			"waiter_lease": storeurl.Duration(&c.WaiterLease, time.Second, time.Minute),
			"poll":         storeurl.Duration(&c.Poll, 10*time.Millisecond, time.Minute),
		}})
	if err != nil {
		return Config{}, err
	}
	c.URL = u
	if u.Timeout != 0 {
		c.Timeout = u.Timeout
	}
	c.Database = strings.TrimPrefix(u.Path, "/")
	return c, c.check()
}

func (c *Config) check() error {
	switch {
	case len(c.URL.Hosts) != 1:
		return errors.New("it names several hosts, and this store has one: the primary")
	case c.Database == "" || strings.Contains(c.Database, "/"):
		return errors.New("it needs a database: mysql://…host/database")
	case len(c.Database) > 64 || strings.ContainsAny(c.Database, "`\x00"):
		return fmt.Errorf("database %q is not a name for one", c.Database)
	case !tableName.MatchString(c.Table):
		return fmt.Errorf("parameter table: %q is not 1 to 64 letters, digits, _ and $", c.Table)
	case len(c.Prefix) > maxPrefix:
		return fmt.Errorf("parameter prefix: it is longer than %d bytes", maxPrefix)
	case c.URL.User == "" && (c.URL.Password != "" || c.URL.PasswordFile != ""):
		return errors.New("there is a password but no user in it")
	}
	return nil
}

// permitsTable is the table of semaphores: that of the locks with _permits, shortened
// where that is longer than a name may be.
func (c Config) permitsTable() string {
	const end, most = "_permits", 64
	if len(c.Table)+len(end) <= most {
		return c.Table + end
	}
	sum := fmt.Sprintf("_%08x", crc32.ChecksumIEEE([]byte(c.Table)))
	return c.Table[:most-len(sum)-len(end)] + sum + end
}

// Addr is the server's host:port.
func (c Config) Addr() string {
	if c.URL == nil {
		return ""
	}
	return c.URL.Hosts[0]
}

// String is the URL without its secrets.
func (c Config) String() string {
	if c.URL == nil {
		return ""
	}
	q := url.Values{}
	if c.Table != DefaultTable {
		q.Set("table", c.Table)
	}
	if c.Prefix != "" {
		q.Set("prefix", c.Prefix)
	}
	if c.URL.TLS.On {
		q.Set("tls", "true")
	}
	if len(q) == 0 {
		return c.URL.String()
	}
	return c.URL.String() + "?" + q.Encode()
}
