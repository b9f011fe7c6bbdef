package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// Config is everything that `serve` can be told.
type Config struct {
	Socket      string
	SocketMode  fs.FileMode
	SocketGroup string

	Upstream string // URL of the store

	TTL          time.Duration
	MaxWait      time.Duration // 0 for no bound
	Drain        time.Duration
	HandOvers    int
	HandOverTime time.Duration

	Limits Limits
	Redis  Redis
	Log    Log

	from map[string]string // where a setting was set, by its path; not there for defaults
}

// Limits bound what clients may use.
type Limits struct {
	MaxConns   int // connections
	MaxHolds   int // a session
	MaxWaiters int // a session
	MaxFrame   int // bytes
	OutBuffer  int // bytes
}

// Redis is who we are to a Redis, where its URL does not say so.
type Redis struct {
	Username     string
	Password     string
	PasswordFile string
}

// Log is how the daemon logs.
type Log struct {
	Level  string
	Format string
}

// Default returns the built-in configuration. env is the environment, for the
// socket's default path.
func Default(env Env) *Config {
	return &Config{
		Socket:       DefaultSocket(env, os.Geteuid()),
		SocketMode:   0o660,
		Upstream:     "memory:",
		TTL:          30 * time.Second,
		Drain:        10 * time.Second,
		HandOvers:    8,
		HandOverTime: 50 * time.Millisecond,
		Limits: Limits{
			MaxConns: 16384, MaxHolds: 2_000_000, MaxWaiters: 65536,
			MaxFrame: 64 << 10, OutBuffer: 4 << 20,
		},
		Log:  Log{Level: "info", Format: "auto"},
		from: map[string]string{},
	}
}

// Env looks up an environment variable, as os.LookupEnv does.
type Env func(name string) (string, bool)

// get is the value of a variable; one that is empty counts as not set.
func (e Env) get(name string) string {
	v, _ := e(name)
	return v
}

// FileVariable names the configuration file when no flag does.
const FileVariable = "LOCKSIDECAR_CONFIG"

// Load reads the configuration from file (unless empty), the environment and the
// flags that were set. Its error names everything that is wrong, one fault a
// line. The configuration is returned with an error too, as far as it was read.
func Load(file string, env Env, flags *pflag.FlagSet) (*Config, error) {
	c := Default(env)
	var faults []error
	if file == "" {
		file = env.get(FileVariable)
	}
	if file != "" {
		faults = append(faults, c.readFile(file)...)
	}
	if env.get(Find("redis.password").Variable()) != "" || env.get(Find("redis.password_file").Variable()) != "" {
		c.Redis.Password, c.Redis.PasswordFile = "", "" // either takes the place of either
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
	if err := errors.Join(faults...); err != nil {
		return c, err
	}
	return c, c.check()
}

// set gives a setting its value, as said at from.
func (c *Config) set(s *Setting, v, from string) error {
	if err := s.value(c).Set(v); err != nil {
		switch {
		case s.Secret:
			v = "…"
		case s.Path == "upstream":
			v = Redacted(v)
		}
		return fmt.Errorf("%s: %q: %w", from, v, err)
	}
	c.from[s.Path] = from
	return nil
}

// From says where a setting was set: "default", "FILE:LINE", a variable or a flag.
func (c *Config) From(s *Setting) string {
	if f := c.from[s.Path]; f != "" {
		return f
	}
	return "default"
}

// check is for what one value alone does not show.
func (c *Config) check() error {
	var faults []error
	fault := func(path, format string, a ...any) {
		s := Find(path)
		faults = append(faults, fmt.Errorf("%s (%s): %s", path, c.From(s), fmt.Sprintf(format, a...)))
	}
	if err := CheckSocket(c.Socket); err != nil {
		fault("socket", "%v", err)
	}
	if c.TTL > longestTTL {
		fault("ttl", "%v is longer than %v", c.TTL, longestTTL)
	}
	if _, err := ParseUpstream(c.Upstream); err != nil {
		fault("upstream", "%v", err)
	} else if c.From(Find("upstream")) == "--upstream" && secretIn(c.Upstream) {
		fault("upstream", "a password on the command line can be read by every user of this machine; "+
			"give redis.password_file or %s instead", Find("redis.password").Variable())
	}
	if pw := c.passwords(); len(pw) > 1 {
		fault(pw[0], "only one password can be given, and here is another: %s (%s)", pw[1], c.From(Find(pw[1])))
	}
	return errors.Join(faults...)
}

// passwords lists the settings that give a password for Redis.
func (c *Config) passwords() (paths []string) {
	if c.Redis.Password != "" {
		paths = append(paths, "redis.password")
	}
	if c.Redis.PasswordFile != "" {
		paths = append(paths, "redis.password_file")
	}
	if hasPassword(c.Upstream) {
		paths = append(paths, "upstream")
	}
	return paths
}
