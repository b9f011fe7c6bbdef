package postgres

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// The values of a Config unless its URL gives others.
const (
	DefaultSchema      = "public"
	DefaultTable       = "locksidecar"
	DefaultTimeout     = 2 * time.Second
	DefaultWaiterLease = 3 * time.Second

	maxKey    = 512
	maxPrefix = 64
)

// Config names a server and a table. Parse makes it from a URL.
type Config struct {
	driverkit.Options
	URL      *storeurl.URL // its address, user, password and TLS
	Database string
	Schema   string
	Table    string
	Prefix   string // of the locks' names in the table

	Timeout     time.Duration // of one batch, and of connecting
	WaiterLease time.Duration // after which a host without a new join leaves the queue
}

// validName limits the length, because the server would cut a longer name with a suffix.
var validName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)

// Parse reads postgres://[user[:password]@]host[:port]/database with the parameters schema, table,
// prefix, timeout, waiter_lease, password_file, tls, ca, cert, key and server_name. The scheme may
// also be postgresql. Parse connects to nothing and opens no file. Its errors are ErrConfig and
// show no secret.
func Parse(raw string) (Config, error) {
	c, err := parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

func parse(raw string) (Config, error) {
	c := Config{Schema: DefaultSchema, Table: DefaultTable, WaiterLease: DefaultWaiterLease}
	u, err := storeurl.Parse(raw, storeurl.Spec{
		Schemes: []string{"postgres", "postgresql"}, Port: "5432", CanTLS: true, Timeout: DefaultTimeout,
		Params: map[string]func(string) error{
			"schema":       storeurl.Text(&c.Schema),
			"table":        storeurl.Text(&c.Table),
			"prefix":       storeurl.Text(&c.Prefix),
			"waiter_lease": storeurl.Duration(&c.WaiterLease, time.Second, time.Minute),
		}})
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
	case c.Database == "" || len(c.Database) > 63 || strings.ContainsAny(c.Database, "/\x00"):
		return errors.New("it needs the name of a database: postgres://…host/database")
	case !validName.MatchString(c.Schema):
		return fmt.Errorf("parameter schema: %q is not 1 to 40 letters, digits and _", c.Schema)
	case !validName.MatchString(c.Table):
		return fmt.Errorf("parameter table: %q is not 1 to 40 letters, digits and _", c.Table)
	case len(c.Prefix) > maxPrefix || !validText(c.Prefix):
		return fmt.Errorf("parameter prefix: it is not UTF-8 of at most %d bytes without control "+
			"characters",
			maxPrefix)
	case c.URL.User == "":
		return errors.New("it needs a user: postgres://user@…")
	}
	return nil
}

// lockWait returns how long a batch waits for a row that another transaction keeps locked.
func (c *Config) lockWait() time.Duration { return min(time.Second, c.Timeout/2) }

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
	if c.Schema != DefaultSchema {
		q.Set("schema", c.Schema)
	}
	if c.Table != DefaultTable {
		q.Set("table", c.Table)
	}
	if c.Prefix != "" {
		q.Set("prefix", c.Prefix)
	}
	return c.URL.Text(q)
}

// validText reports whether text can be in a name. The server accepts only UTF-8.
func validText(text string) bool {
	if !utf8.ValidString(text) {
		return false
	}
	for _, r := range text {
		if unicode.IsControl(r) {
			return false
		}
	}
	return true
}
