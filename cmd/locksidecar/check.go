package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/protocol"
)

func (m *Main) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Look at the daemon's configuration",
		Args:  func(_ *cobra.Command, args []string) error { return unknownCommand(args) },
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(m.checkCommand())
	return cmd
}

func (m *Main) checkCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check [flags] [KEY]",
		Short: "Check a configuration without using it",
		Long: `Read the configuration as serve would, from the file, the environment and the
flags, and show what it comes to and where each value is from. With KEY it shows
what a lock of that name would get. It connects to nothing and shows no secrets.
The exit code is 0 when everything is well-formed and 64 when not.`,
		Example: `  locksidecar config check --config /etc/locksidecar.yaml
  locksidecar config check --upstream redis://redis.internal:6379 order:42`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("takes one key, and not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := config.Load(file, m.Env, cmd.Flags())
			if err != nil {
				return &exitError{code: exitUsage, err: err}
			}
			p, err := planStore(c)
			if err != nil {
				return exit(exitUsage, "upstream (%s): %w", c.From(config.Find("upstream")), err)
			}
			if err := writeConfig(m.Stdout, c, p); err != nil || len(args) == 0 {
				return written(err)
			}
			return explain(m.Stdout, c, p, args[0])
		},
	}
	configFlag(cmd, &file)
	config.AddFlags(cmd.Flags(), m.Env)
	completeSettings(cmd)
	return cmd
}

// writeConfig shows every setting that has a value, and where it is from.
func writeConfig(w io.Writer, c *config.Config, p *plan) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for i, s := range config.Settings() {
		if v := s.Value(c); v != "" {
			fmt.Fprintf(t, "%s\t%s\t%s\n", s.Path, v, c.From(&config.Settings()[i]))
		}
	}
	fmt.Fprintf(t, "\nstore\t%s, %s\t%s\n", p.kind, p.safety, p.where)
	return t.Flush()
}

// reserved is where the Redis store keeps what belongs to locks.
const reserved = "locksidecar:"

// explain shows what a lock of this name would get.
func explain(w io.Writer, c *config.Config, p *plan, key string) error {
	if err := protocol.CheckKey(key); err != nil {
		return exit(exitUsage, "%w", err)
	}
	name := ""
	if p.name != nil {
		if name = p.name(key); strings.HasPrefix(name, reserved) {
			return exit(exitUsage, "key %s: it would be %q in Redis, and names there that begin with %q are reserved", key, name, reserved)
		}
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(what, format string, a ...any) { fmt.Fprintf(t, what+"\t"+format+"\n", a...) }
	line("\nkey", "%s", key)
	line("store", "%s, %s", p.kind, p.safety)
	if name != "" {
		line("name there", "%s (a plain SET … NX PX on it excludes us, and we it)", name)
		line("scope", "all hosts that use this Redis and prefix")
	} else {
		line("scope", "this host")
	}
	line("lease", "%v unless the client asks for another, renewed while held", c.TTL)
	line("longest wait", "%s", unbounded(c.MaxWait))
	if p.kind != config.KindEmbedded {
		line("when another host waits", "%d more hand-overs on this host, or %v, then the other's turn", c.HandOvers, c.HandOverTime)
	}
	return written(t.Flush())
}

func unbounded(d time.Duration) string {
	if d == 0 {
		return "without bound"
	}
	return d.String()
}
