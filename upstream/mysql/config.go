package mysql

import (
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// The defaults of the URL's parameters.
const (
	DefaultTable       = "locksidecar"
	DefaultTimeout     = 2 * time.Second
	DefaultWaiterLease = 3 * time.Second
	DefaultPoll        = 100 * time.Millisecond
)

// The lengths of the columns, in bytes.
const (
	maxKey    = 512
	maxPrefix = 64
	nameLen   = maxKey + maxPrefix
)

// Config is the configuration of a Store. Parse makes it from a URL.
type Config struct {
	driverkit.Options
	URL      *storeurl.URL // its address, user, password and TLS
	Database string
	Table    string
	Prefix   string // of the locks' names in the table

	Timeout     time.Duration // of one batch, and of connecting
	WaiterLease time.Duration // after which a host without a new join leaves the queue
	Poll        time.Duration // the interval of reads of locks for which the store waits

	plain bool // no write returns the rows that it leaves; for tests
}

var tableName = regexp.MustCompile(`^[A-Za-z0-9_$]{1,64}$`)

// Parse reads mysql://[user[:password]@]host[:port]/database with the parameters table, prefix,
// timeout, waiter_lease, poll, password_file, tls, ca, cert, key and server_name. It connects to
// nothing and opens no file. Its errors are ErrConfig and show no secret.
func Parse(raw string) (Config, error) {
	c, err := parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

func parse(raw string) (Config, error) {
	c := Config{Table: DefaultTable, WaiterLease: DefaultWaiterLease, Poll: DefaultPoll}
	u, err := storeurl.Parse(raw, storeurl.Spec{
		Schemes: []string{"mysql"}, Port: "3306", CanTLS: true, Timeout: DefaultTimeout, NeedsUser: true,
		Params: map[string]func(string) error{
			"table":        storeurl.Text(&c.Table),
			"prefix":       storeurl.Text(&c.Prefix),
			"waiter_lease": storeurl.Duration(&c.WaiterLease, time.Second, time.Minute),
			"poll":         storeurl.Duration(&c.Poll, 10*time.Millisecond, time.Minute),
		},
	})
	if err != nil {
		return Config{}, err
	}
	c.URL, c.Timeout = u, u.Timeout
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
	}
	return nil
}

// permitsTable returns the name of the semaphores' table: the name of the locks' table with
// _permits, shortened if it is too long.
func (c Config) permitsTable() string {
	const suffix, limit = "_permits", 64
	if len(c.Table)+len(suffix) <= limit {
		return c.Table + suffix
	}
	sum := fmt.Sprintf("_%08x", crc32.ChecksumIEEE([]byte(c.Table)))
	return c.Table[:limit-len(sum)-len(suffix)] + sum + suffix
}

// Addr returns the server's host:port.
func (c Config) Addr() string {
	if c.URL == nil {
		return ""
	}
	return c.URL.Hosts[0]
}

// String returns the URL without its secrets.
func (c Config) String() string {
	q := url.Values{}
	if c.Table != DefaultTable {
		q.Set("table", c.Table)
	}
	if c.Prefix != "" {
		q.Set("prefix", c.Prefix)
	}
	return c.URL.Text(q)
}
