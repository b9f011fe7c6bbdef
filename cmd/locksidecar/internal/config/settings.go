package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// Field is one field of T, which is the configuration or a part of it.
type Field[T any] struct {
	Path    string // in the file, with a dot before each level
	Flag    string // name of serve's flag; empty if there is none
	Help    string // `x` in it is the name of the value
	More    string // whole sentences, for the reference
	Example string // in the form of the file; empty if the default is the example
	Secret  bool   // never shown, and set only in files or the environment
	Restart bool   // SIGHUP does not change it
	value   func(*T) value
}

// Setting is one field of the configuration.
type Setting = Field[Config]

// within converts fields of a part of T into fields of T.
func within[T, P any](part func(*T) *P, fields []Field[P]) []Field[T] {
	var all []Field[T]
	for _, f := range fields {
		all = append(all, Field[T]{f.Path, f.Flag, f.Help, f.More, f.Example, f.Secret, f.Restart,
			func(t *T) value { return f.value(part(t)) }})
	}
	return all
}

// find returns the field with that path; nil if there is none.
func find[T any](fields []Field[T], path string) *Field[T] {
	i := slices.IndexFunc(fields, func(f Field[T]) bool { return f.Path == path })
	if i < 0 {
		return nil
	}
	return &fields[i]
}

// Variable is the setting's name in the environment.
func (f *Field[T]) Variable() string {
	return "LOCKSIDECAR_" + strings.ToUpper(strings.ReplaceAll(f.Path, ".", "_"))
}

// Value returns the field's value in t as text, "(set)" for a secret.
func (f *Field[T]) Value(t *T) string {
	v := f.value(t).String()
	if f.Secret && v != "" {
		return "(set)"
	}
	return f.redact(v)
}

// set gives the field of t the value v.
func (f *Field[T]) set(t *T, v string) error {
	err := f.value(t).Set(v)
	if err == nil {
		return nil
	}
	if f.Secret {
		v = "…"
	}
	return fmt.Errorf("%q: %w", f.redact(v), err)
}

// redact returns v without the secrets in it.
func (f *Field[T]) redact(v string) string {
	if f.Path == "upstream" {
		return storeurl.Redact(v)
	}
	return v
}

// isList reports whether the field has a list of values.
func (f *Field[T]) isList() bool {
	_, is := f.value(new(T)).(parsed[list])
	return is
}

// Settings returns all settings, in the order of the example file.
func Settings() []Setting { return settings }

// settings begins with the settings of the sockets. The main store and the policy for all keys
// follow.
var settings = slices.Concat([]Setting{
	{Path: "socket", Flag: "socket", Help: "`path` of the Unix socket that clients connect to",
		More: "The daemon creates the directory if it does not exist. Files beside the socket " +
			"have its name with `.lock`, `.state`, `.parked` or `.admin` appended.",
		Restart: true, Example: "/run/app/locks.sock",
		value: func(c *Config) value { return text(&c.Socket) }},
	{Path: "socket_mode", Flag: "socket-mode", Help: "permissions of the socket, octal `mode`",
		More: "Clients that may connect can use every lock, unless `users` or `groups` " +
			"exclude them. The admin socket has the same permissions.",
		Restart: true, Example: "0600", value: func(c *Config) value { return mode(&c.SocketMode) }},
	{Path: "socket_group", Flag: "socket-group",
		Help:    "`group` of the socket, by name or number; empty for the daemon's own group",
		Restart: true, Example: "app", value: func(c *Config) value { return text(&c.SocketGroup) }},
	{Path: "admin_listen", Flag: "admin-listen",
		Help: "`HOST:PORT` where the daemon serves metrics, health and the page on TCP, " +
			"besides the admin socket",
		More:    "It has no password.",
		Restart: true, Example: "127.0.0.1:9402",
		value: func(c *Config) value { return text(&c.AdminListen) }},

	{Path: "host_name", Flag: "host-name",
		Help: "`name` that other hosts show for this host when it holds a lock; empty for the " +
			"machine's own name",
		More:    "The daemon registers it in its stores. In a pod, use the node's name.",
		Restart: true, Example: "web-3", value: func(c *Config) value { return text(&c.HostName) }},
}, within(func(c *Config) *StoreSettings { return &c.Main }, storeFields),
	within(func(c *Config) *Policy { return &c.Policy }, policyFields), []Setting{
		{Path: "drain", Flag: "drain", Help: "how long holders get to finish when the daemon is " +
			"told to end",
			More:    "After that the daemon closes their connections and releases their locks.",
			Example: "30s", value: func(c *Config) value { return duration(&c.Drain, 0, 0) }},
		{Path: "keep_over_restart", Flag: "keep-over-restart",
			Help: "on shutdown, hand connections and locks to the service manager for the next " +
				"process instead of draining",
			More: "This is for `systemctl restart` of a unit with `FileDescriptorStoreMax=`: " +
				"clients keep their connections and locks, and wait. If no next process comes, " +
				"as after `systemctl stop`, locks stay taken until their stated validity is " +
				"over. Without a service manager the daemon drains.",
			Example: "true", value: func(c *Config) value { return yesno(&c.KeepOverRestart) }},
		{Path: "limits.max_conns", Flag: "max-conns", Help: "maximum number of simultaneous " +
			"connections",
			More:    "A connection takes three file descriptors.",
			Example: "4096", value: func(c *Config) value { return number(&c.Limits.MaxConns, 1, 1<<20) }},
		{Path: "limits.max_holds", Flag: "max-holds",
			Help:    "maximum number of locks held by one connection",
			Example: "10000", value: func(c *Config) value { return number(&c.Limits.MaxHolds, 1, 1<<30) }},
		{Path: "limits.max_waiters", Flag: "max-waiters",
			Help:    "maximum number of waiting acquires on one connection",
			More:    "Requests that a store has not answered yet count, too.",
			Example: "1000", value: func(c *Config) value { return number(&c.Limits.MaxWaiters, 1, 1<<30) }},
		{Path: "limits.max_user_conns", Flag: "max-user-conns",
			Help:    "maximum number of simultaneous connections of one user; 0 for no limit",
			More:    "Users are uids; all that the daemon's user namespace does not map count as one.",
			Example: "1024", value: func(c *Config) value { return number(&c.Limits.UserConns, 0, 1<<20) }},
		{Path: "limits.max_user_holds", Flag: "max-user-holds",
			Help:    "maximum number of locks held by all connections of one user; 0 for no limit",
			Example: "100000", value: func(c *Config) value {
				return number(&c.Limits.UserHolds, 0, 1<<30)
			}},
		{Path: "limits.max_user_waiters", Flag: "max-user-waiters",
			Help: "maximum number of waiting acquires on all connections of one user; 0 for " +
				"no limit",
			More:    "Requests that a store has not answered count, even if no client waits for them.",
			Example: "10000", value: func(c *Config) value {
				return number(&c.Limits.UserWaiters, 0, 1<<30)
			}},
		{Path: "limits.max_user_rate", Flag: "max-user-rate",
			Help: "maximum number of requests per second on all connections of one user; 0 for " +
				"no limit",
			More: "Excess requests are delayed, not refused, but each connection may always send " +
				"one request per second. Each key of several counts as one, a new " +
				"connection as 20. Bursts of up to a tenth of a second's worth are " +
				"not delayed. No lock is lost by the delay.",
			Example: "20000", value: func(c *Config) value { return number(&c.Limits.UserRate, 0, 1<<30) }},
		{Path: "limits.max_frame", Flag: "max-frame", Help: "maximum size of one message, in " +
			"`bytes`",
			More:    "The daemon tells clients when they connect.",
			Example: "1048576", value: func(c *Config) value {
				return number(&c.Limits.MaxFrame, 4<<10, 64<<20)
			}},
		{Path: "limits.out_buffer", Flag: "out-buffer",
			Help: "maximum output, in `bytes`, that waits for a client to read it; above it " +
				"the daemon ends the session",
			Example: "16777216", value: func(c *Config) value {
				return number(&c.Limits.OutBuffer, 4<<10, 1<<30)
			}},

		{Path: "operators.users",
			Help:    "users who may unlock by force, besides root and the daemon's own user",
			Example: "[1001]", value: func(c *Config) value { return names(&c.Operators.Users) }},
		{Path: "operators.groups",
			Help:    "groups whose members may unlock by force",
			Example: "[1001]", value: func(c *Config) value { return names(&c.Operators.Groups) }},

		{Path: "log.level", Flag: "log-level", Help: "lowest level that is logged: debug, info, " +
			"warn or error",
			Example: "debug", value: func(c *Config) value {
				return choice(&c.Log.Level, "debug", "info",
					"warn", "error")
			}},
		{Path: "log.format", Flag: "log-format",
			Help: "format of the log: json, console, or auto (console if standard error is a " +
				"terminal)",
			Restart: true, Example: "json", value: func(c *Config) value {
				return choice(&c.Log.Format,
					"auto", "json", "console")
			}},
		{Path: "log.audit", Flag: "log-audit", Help: "log each acquire, refusal and release of a " +
			"lock, and each session",
			More: "These lines are JSON, whatever the level and format of the other lines. " +
				"Lost locks are always logged.",
			Example: "true", value: func(c *Config) value { return yesno(&c.Log.Audit) }},
		{Path: "log.keys", Flag: "log-keys", Help: "how the log shows keys: plain or hashed",
			More:    "A hashed key is the first 8 bytes of its SHA-256, in hexadecimal.",
			Example: "hashed", value: func(c *Config) value {
				return choice(&c.Log.Keys, "plain",
					"hashed")
			}},
	})

// Find returns the setting with that path. It panics if there is none.
func Find(path string) *Setting {
	s := find(settings, path)
	if s == nil {
		panic("config: no setting " + path)
	}
	return s
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
	v := s.value(Default(env))
	fs.Var(v, s.Flag, s.Help)
	if v.Type() == "bool" {
		fs.Lookup(s.Flag).NoOptDefVal = "true"
	}
}
