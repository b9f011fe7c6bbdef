package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// Setting is one thing that can be set.
type Setting struct {
	Path   string // in the file, with a dot before each level
	Flag   string // of serve; empty when it has none
	Help   string // `x` in it names the value
	Secret bool   // never shown, and only ever in files or the environment
	value  func(*Config) pflag.Value
}

// Variable is the setting's name in the environment.
func (s *Setting) Variable() string {
	return "LOCKSIDECAR_" + strings.ToUpper(strings.ReplaceAll(s.Path, ".", "_"))
}

// Value returns the setting's value in c as text, "(set)" for a secret.
func (s *Setting) Value(c *Config) string {
	v := s.value(c).String()
	switch {
	case s.Secret && v != "":
		return "(set)"
	case s.Path == "upstream":
		return storeurl.Redact(v)
	}
	return v
}

// Settings returns all of them, in the order of the example file.
func Settings() []Setting { return settings }

var settings = withPolicy([]Setting{
	{Path: "socket", Flag: "socket", Help: "`path` of the Unix socket that clients connect to",
		value: func(c *Config) pflag.Value { return (*text)(&c.Socket) }},
	{Path: "socket_mode", Flag: "socket-mode", Help: "permissions of the socket, octal `mode`",
		value: func(c *Config) pflag.Value { return (*mode)(&c.SocketMode) }},
	{Path: "socket_group", Flag: "socket-group", Help: "`group` of the socket, by name or number; empty leaves the daemon's own",
		value: func(c *Config) pflag.Value { return (*text)(&c.SocketGroup) }},

	{Path: "upstream", Flag: "upstream", Help: "`URL` of the store: memory: (this host alone), redis://HOST:PORT, etcd://HOST,HOST …; the README has them all",
		value: func(c *Config) pflag.Value { return (*text)(&c.Main.Upstream) }},
	{Path: "username", Help: "who we are to the store, if the URL names nobody",
		value: func(c *Config) pflag.Value { return (*text)(&c.Main.Username) }},
	{Path: "password", Secret: true, Help: "password there",
		value: func(c *Config) pflag.Value { return (*text)(&c.Main.Password) }},
	{Path: "password_file", Help: "`file` that holds the password; read for each connection, so it may change",
		value: func(c *Config) pflag.Value { return (*text)(&c.Main.PasswordFile) }},

	{Path: "drain", Flag: "drain", Help: "how long holders get to finish when the daemon is told to end",
		value: func(c *Config) pflag.Value { return &duration{&c.Drain, 0} }},
	{Path: "limits.max_conns", Flag: "max-conns", Help: "connections at once",
		value: func(c *Config) pflag.Value { return &number{&c.Limits.MaxConns, 1, 1 << 20} }},
	{Path: "limits.max_holds", Flag: "max-holds", Help: "locks held at once by one connection",
		value: func(c *Config) pflag.Value { return &number{&c.Limits.MaxHolds, 1, 1 << 30} }},
	{Path: "limits.max_waiters", Flag: "max-waiters", Help: "acquires waiting at once on one connection",
		value: func(c *Config) pflag.Value { return &number{&c.Limits.MaxWaiters, 1, 1 << 30} }},
	{Path: "limits.max_frame", Flag: "max-frame", Help: "`bytes` of one message",
		value: func(c *Config) pflag.Value { return &number{&c.Limits.MaxFrame, 4 << 10, 64 << 20} }},
	{Path: "limits.out_buffer", Flag: "out-buffer", Help: "`bytes` that may wait for a client to read them before it is cut off",
		value: func(c *Config) pflag.Value { return &number{&c.Limits.OutBuffer, 4 << 10, 1 << 30} }},

	{Path: "log.level", Flag: "log-level", Help: "debug, info, warn or error",
		value: func(c *Config) pflag.Value { return &choice{&c.Log.Level, []string{"debug", "info", "warn", "error"}} }},
	{Path: "log.format", Flag: "log-format", Help: "json, console, or auto: console when standard error is a terminal",
		value: func(c *Config) pflag.Value { return &choice{&c.Log.Format, []string{"auto", "json", "console"}} }},
})

// withPolicy puts the policy for all keys behind the stores.
func withPolicy(list []Setting) []Setting {
	at := slices.IndexFunc(list, func(s Setting) bool { return s.Path == "drain" })
	var policy []Setting
	for _, p := range policySettings {
		policy = append(policy, Setting{Path: p.name, Flag: p.flag, Help: p.help,
			value: func(c *Config) pflag.Value { return p.value(&c.Policy) }})
	}
	return slices.Insert(list, at, policy...)
}

// Find returns the setting with that path. There has to be one.
func Find(path string) *Setting {
	for i := range settings {
		if settings[i].Path == path {
			return &settings[i]
		}
	}
	panic("config: no setting " + path)
}

// AddFlags adds the flag of every setting that has one.
func AddFlags(fs *pflag.FlagSet, env Env) {
	for i := range settings {
		if settings[i].Flag != "" {
			addFlag(fs, env, &settings[i])
		}
	}
}

// AddFlag adds the flag of one setting.
func AddFlag(fs *pflag.FlagSet, env Env, path string) { addFlag(fs, env, Find(path)) }

func addFlag(fs *pflag.FlagSet, env Env, s *Setting) {
	fs.Var(s.value(Default(env)), s.Flag, s.Help)
}
