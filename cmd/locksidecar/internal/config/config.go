package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"regexp"
	"time"

	"github.com/spf13/pflag"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// Config is the configuration of `serve`.
type Config struct {
	Socket      string
	SocketMode  fs.FileMode
	SocketGroup string
	AdminListen string // "host:port", or empty
	HostName    string // empty for the machine's host name

	Main   StoreSettings    // the store of all keys whose namespace names no other store
	Stores []*StoreSettings // sorted by name

	Policy
	Namespaces []*Namespace
	Classes    []Class

	Drain           time.Duration
	KeepOverRestart bool // holds pass to the next process through the service manager
	Limits          Limits
	Operators       Operators
	Log             Log

	from map[string]string // where each setting was set, by its path; has no defaults
}

// Class is a name for metrics of the keys that begin with a prefix.
type Class struct{ Name, Prefix string }

// Limits bound what clients may use.
type Limits struct {
	MaxConns   int // connections
	MaxHolds   int // per session
	MaxWaiters int // per session
	MaxFrame   int // bytes
	OutBuffer  int // bytes

	// These limits are for all connections of a user together; 0 means no limit.
	UserConns, UserHolds, UserWaiters, UserRate int
}

// Operators are users who may unlock by force, by name or number, besides root and the daemon's own
// user.
type Operators struct{ Users, Groups []string }

// Log has the settings of the daemon's log.
type Log struct {
	Level  string
	Format string
	Audit  bool
	Keys   string
}

// Default returns the built-in configuration. env is the environment, which decides the default
// path of the socket.
func Default(env Env) *Config {
	return &Config{
		Socket:     DefaultSocket(env, os.Geteuid()),
		SocketMode: 0o660,
		Main:       StoreSettings{Upstream: "memory:"},
		Policy: Policy{TTL: 30 * time.Second, MaxHandoffs: 8, MaxHandoffTime: 50 * time.Millisecond,
			LingerPause: 30 * time.Second,
			Outage:      "fail", OutageAfter: time.Second},
		Drain: 10 * time.Second,
		Limits: Limits{
			MaxConns: 16384, MaxHolds: 2_000_000, MaxWaiters: 65536,
			MaxFrame: 64 << 10, OutBuffer: 4 << 20,
		},
		Log:  Log{Level: "info", Format: "auto", Keys: "plain"},
		from: map[string]string{},
	}
}

// Env looks up an environment variable, as os.LookupEnv does.
type Env func(name string) (string, bool)

// get returns the value of a variable; an empty one counts as not set.
func (e Env) get(name string) string {
	v, _ := e(name)
	return v
}

// FileVariable is the variable that names the configuration file if no flag does.
const FileVariable = "LOCKSIDECAR_CONFIG"

// File returns the configuration file: flag, which is the value of the flag, or else the value of
// FileVariable. It is empty if neither names a file.
func (e Env) File(flag string) string {
	if flag != "" {
		return flag
	}
	return e.get(FileVariable)
}

// Load reads the configuration from the file that env.File returns for file, if any, from the
// environment, and from the flags that were set. Its error names every fault, one on each line.
// With an error, Load also returns the part of the configuration that it has read.
func Load(file string, env Env, flags *pflag.FlagSet) (*Config, error) {
	c := Default(env)
	var faults []error
	if file = env.File(file); file != "" {
		faults = append(faults, c.readFile(file)...)
	}
	if env.get(Find("password").Variable()) != "" || env.get(Find("password_file").Variable()) != "" {
		// A variable for one of the two fields also replaces the other one, if the file sets that.
		c.Main.Password, c.Main.PasswordFile = "", ""
	}
	for i := range settings {
		s := &settings[i]
		name := s.Variable()
		if v := env.get(name); v != "" {
			faults = append(faults, c.set(s, v, name))
		}
		if f := flags.Lookup(s.Flag); s.Flag != "" && f != nil && f.Changed {
			faults = append(faults, c.set(s, f.Value.String(), "--"+s.Flag))
		}
	}
	faults = append(faults, c.inherit()...)
	return c, errors.Join(errors.Join(faults...), c.check())
}

// set gives a setting the value v, which is set at from.
func (c *Config) set(s *Setting, v, from string) error {
	if err := s.set(c, v); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	c.from[s.Path] = from
	return nil
}

// From returns where a setting was set: "default", "FILE:LINE", a variable or a flag.
func (c *Config) From(s *Setting) string { return c.FromPath(s.Path) }

// FromPath is From for a path, which may also be a field of a store or a namespace.
func (c *Config) FromPath(path string) string {
	if f := c.from[path]; f != "" {
		return f
	}
	return "default"
}

// Set reports whether the configuration sets the field.
func (c *Config) Set(path string) bool { return c.from[path] != "" }

// check checks combinations of values.
func (c *Config) check() error {
	var faults []error
	fault := func(path, format string, a ...any) {
		faults = append(faults, fmt.Errorf("%s (%s): %s", path, c.FromPath(path),
			fmt.Sprintf(format, a...)))
	}
	if err := CheckSocket(c.Socket); err != nil {
		fault("socket", "%v", err)
	}
	for _, st := range append([]*StoreSettings{&c.Main}, c.Stores...) {
		c.checkStore(st, fault)
	}
	c.checkNamespaces(fault)
	c.checkAdmin(fault)
	c.checkClasses(fault)
	if _, err := UIDs(c.Operators.Users); err != nil {
		fault("operators.users", "%v", err)
	}
	if _, err := GIDs(c.Operators.Groups); err != nil {
		fault("operators.groups", "%v", err)
	}
	return errors.Join(faults...)
}

func (c *Config) checkAdmin(fault func(path, format string, a ...any)) {
	if c.AdminListen != "" {
		_, port, err := net.SplitHostPort(c.AdminListen)
		if err == nil && port != "" {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil || port == "" {
			fault("admin_listen", "%q is not HOST:PORT, as in 127.0.0.1:9402", c.AdminListen)
		}
	}
}

// maxClasses limits the size of each scrape.
const maxClasses = 100

func (c *Config) checkClasses(fault func(path, format string, a ...any)) {
	if len(c.Classes) > maxClasses {
		fault("classes", "there are %d prefixes; the maximum is %d", len(c.Classes), maxClasses)
	}
	prefixes := make(map[string]string)
	for _, x := range c.Classes {
		at := "classes." + x.Name
		if !className.MatchString(x.Name) {
			fault(at, "a class name consists of at most 40 characters from a-z, 0-9, _ and -")
		}
		if err := protocol.CheckKey(x.Prefix); err != nil {
			fault(at, "%v", err)
		}
		if other, twice := prefixes[x.Prefix]; twice {
			fault(at, "%s already has the prefix %q", other, x.Prefix)
		}
		prefixes[x.Prefix] = x.Name
	}
}

var className = regexp.MustCompile(`^[a-z0-9_-]{1,40}$`)

func (c *Config) checkStore(s *StoreSettings, fault func(path, format string, a ...any)) {
	at := s.path
	if s.Upstream == "" {
		if !s.faulty {
			fault(at("upstream"), "it needs a URL")
		}
	} else if _, err := ParseUpstream(s.Upstream); err != nil {
		fault(at("upstream"), "%v", err)
	} else if c.FromPath(at("upstream")) == "--upstream" && storeurl.HasPassword(s.Upstream) {
		fault(at("upstream"), "a password on the command line can be read by every user of this machine; "+
			"give password_file or %s instead", Find("password").Variable())
	}
	if pw := s.passwords(); len(pw) > 1 {
		fault(at(pw[0]), "only one password can be set, but %s (%s) sets another",
			at(pw[1]), c.FromPath(at(pw[1])))
	}
}
