package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

func (m *Main) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and describe the daemon's configuration",
		Args:  unknownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(m.checkCommand(), m.referenceCommand())
	return cmd
}

func (m *Main) referenceCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reference",
		Short: "Write a page in Markdown with every field of the configuration",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return written(config.WriteReference(m.Stdout)) },
	}
}

func (m *Main) checkCommand() *cobra.Command {
	var file string
	var all bool
	cmd := &cobra.Command{
		Use:   "check [flags] [KEY]",
		Short: "Check a configuration without using it",
		Long: `Read the configuration as serve does, from the file, the environment and the flags,
and show the values that differ from the defaults, each with its origin; -a shows all.
With KEY it shows the settings for a lock of that name. It connects to nothing and
shows no secrets. The exit code is 0 if the configuration has no errors, and else 64.`,
		Example: `  locksidecar config check --config /etc/locksidecar.yaml
  locksidecar config check --upstream redis://redis.internal:6379 order:42`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("takes one key, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && m.Env.File(file) == "" && isFile(args[0]) {
				return usage("%[1]s is a file; to check it, use --config %[1]s. To show the "+
					"settings for a key of that name, add --config FILE", args[0])
			}
			p, err := m.load(file, cmd.Flags())
			if err != nil {
				return err
			}
			if err := writeConfig(m.Stdout, p.conf, p.plans, all); err != nil || len(args) == 0 {
				return written(err)
			}
			return explain(m.Stdout, p.conf, p.plans, args[0])
		},
	}
	configFlag(cmd, &file)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show the settings that have their defaults, too")
	config.AddFlags(cmd.Flags(), m.Env)
	completeSettings(cmd)
	return cmd
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// writeConfig shows the settings that are set, and their origins. With all it also shows the
// defaults.
func writeConfig(w io.Writer, c *config.Config, plans map[string]*plan, all bool) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	shown := false
	for i, s := range config.Settings() {
		if v := s.Value(c); v != "" && (all || c.Set(s.Path)) {
			fmt.Fprintf(t, "%s\t%s\t%s\n", s.Path, v, c.From(&config.Settings()[i]))
			shown = true
		}
	}
	c.EachNamed(func(path, value string) {
		fmt.Fprintf(t, "%s\t%s\t%s\n", path, value, c.FromPath(path))
		shown = true
	})
	if !shown {
		fmt.Fprintln(t, "every setting has its default (-a shows all settings)")
	}
	fmt.Fprintln(t)
	for _, s := range append([]*config.StoreSettings{&c.Main}, c.Stores...) {
		p := plans[s.Name]
		fmt.Fprintf(t, "store %s\t%s, %s\t%s\n", storeName(s.Name), p.kind, p.safety, p.where)
	}
	for _, n := range c.AllNamespaces() {
		if len(c.Namespaces) == 0 {
			break
		}
		what := "keys " + n.Prefix + "…"
		if n.Prefix == "" {
			what = "all other keys"
		}
		fmt.Fprintf(t, "%s\t%s\t\n", what, whereTo(c, n))
	}
	return t.Flush()
}

func storeName(name string) string {
	if name == "" {
		return config.DefaultStore
	}
	return name
}

// whereTo describes the stores of a namespace's keys.
func whereTo(c *config.Config, n *config.Namespace) string {
	s := "store " + storeName(c.Store(n.Store).Name)
	if n.Both != "" {
		s += " and, while moving, store " + storeName(c.Store(n.Both).Name)
	}
	return s
}

// explain shows the settings for a lock of this name.
func explain(w io.Writer, c *config.Config, plans map[string]*plan, key string) error {
	if err := protocol.CheckKey(key); err != nil {
		return exit(exitUsage, "%w", err)
	}
	n := c.Space(key)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(what, format string, a ...any) { fmt.Fprintf(t, what+"\t"+format+"\n", a...) }
	line("\nkey", "%s", key)
	if len(c.Namespaces) > 0 {
		switch at := config.NamespacePath(n.Prefix); {
		case n.Prefix != "":
			line("namespace", "%s (%s)", n.Prefix, c.FromPath(at))
		case c.Set(at):
			line("namespace", "\"\", all other keys (%s)", c.FromPath(at))
		default:
			line("namespace", "none; the settings for all other keys apply")
		}
	}
	names := []string{n.Store}
	if n.Both != "" {
		names = append(names, n.Both)
	}
	for _, name := range names {
		if err := explainStore(line, plans[c.Store(name).Name], key); err != nil {
			return err
		}
	}
	explainPolicy(line, n)
	explainFences(line, n, plans[c.Store(n.Both).Name])
	return written(t.Flush())
}

func explainStore(line func(what, format string, a ...any), p *plan, key string) error {
	name := ""
	if p.name != "" {
		name = p.name + ": "
	}
	line("store", "%s%s, %s", name, p.kind, p.safety)
	if p.check != nil {
		if err := p.check(key); err != nil {
			return exit(exitUsage, "key %s: %w", key, err)
		}
	}
	if p.there != nil {
		line("name in the store", "%s", p.there(key))
	}
	line("scope", "%s", p.scope)
	if p.session > 0 {
		line("store session", "%v: how long locks stay taken if this host dies, whatever their TTL",
			p.session)
	}
	return nil
}

func explainPolicy(line func(what, format string, a ...any), n *config.Namespace) {
	line("lease", "%v unless the client asks for another, renewed while held", n.TTL)
	line("longest wait", "%s", unbounded(n.MaxWait))
	if n.MaxHold > 0 {
		line("longest hold", "%v, then it is lost", n.MaxHold)
	}
	if n.Heartbeat > 0 {
		line("heartbeat", "a client that sends nothing for %v loses it", n.Heartbeat)
	}
	if n.MaxHolds > 0 || n.MaxWaiters > 0 {
		line("at most", "%s held and %s waiting in the whole namespace",
			numberOrAny(n.MaxHolds), numberOrAny(n.MaxWaiters))
	}
	line("when another host waits", "at most %d more handoffs on this host, in at most %v",
		n.MaxHandoffs, n.MaxHandoffTime)
	if n.Linger > 0 {
		line("when nobody holds it", "if this host often uses it again, the lease stays for %v, "+
			"but not within %v after a request of another host",
			min(n.Linger, n.TTL/2), n.LingerPause)
	}
	if n.Interop {
		line("plain lockers", "after %v of handoffs this host pauses for %v, so that they can acquire it",
			engine.DefaultTenure, engine.DefaultPause)
	}
	if n.Outage == "local" {
		line("in an outage", "after %v this host grants alone, marked degraded and without a fence",
			n.OutageAfter)
	} else {
		line("in an outage", "held locks last until their deadlines; new acquires are refused at once")
	}
	if len(n.Users)+len(n.Groups) > 0 {
		line("allowed", "users %s, groups %s", orNone(n.Users), orNone(n.Groups))
	}
}

// explainFences shows which store decides fences. second is the plan of the store in both.
func explainFences(line func(what, format string, a ...any), n *config.Namespace, second *plan) {
	raised := ""
	if n.FenceEpoch > 0 {
		raised = fmt.Sprintf("raised by fence_epoch %d", n.FenceEpoch)
	}
	switch {
	case n.Both == "" || second.can.rebase:
		if raised != "" {
			line("fences", "%s", raised)
		}
	case raised == "":
		line("fences", "the first store decides them, until another host also has a fence_epoch")
	default:
		line("fences", "the second store decides them, %s", raised)
	}
}

func numberOrAny(n int) string {
	if n == 0 {
		return "any number"
	}
	return strconv.Itoa(n)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func unbounded(d time.Duration) string {
	if d == 0 {
		return "no limit"
	}
	return d.String()
}
