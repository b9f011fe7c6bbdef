package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/protocol/conformance"
)

// exitFailed is the exit code of conformance when a scenario failed.
const exitFailed = 1

func (m *Main) conformanceCommand() *cobra.Command {
	var o conformance.Options
	var program string
	var list, asJSON bool
	cmd := &cobra.Command{
		Use:   "conformance [flags] --client CMD [ARGS...]",
		Short: "Test a client, in any language, against the protocol",
		Long: `Run a client program through scenarios of the protocol, and report for each whether
it has passed. This is for authors of clients: docs/contribute/client.md describes how the
program reads commands from its standard input and answers on its standard output,
with one JSON object per line.

Each scenario starts CMD anew with its own daemon, whose socket is in
LOCKSIDECAR_SOCKET. No daemon has to run, and running ones are not affected. A scenario
that needs an ability which the client lacks is skipped: it does not count as passed.

The exit code is 0 if no scenario has failed, 1 if one has, and 64 on wrong usage.`,
		Example: `  locksidecar conformance --client node clients/examples/node/conformance.mjs
  locksidecar conformance --only late-grant --only keepalive --client ./my-client
  locksidecar conformance --list`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case list:
				return m.listScenarios(asJSON)
			case program == "":
				return usage("no client program is named: --client CMD")
			case o.Timeout <= 0 || o.Jobs < 0:
				return usage("--timeout must be positive, and --jobs must not be negative")
			}
			o.Command = append([]string{program}, args...)
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return m.conform(ctx, o, asJSON)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // the arguments after the client program belong to it
	f.StringVar(&program, "client", "", "`CMD`, the client program, followed by its "+
		"arguments (after -- if they begin with a dash)")
	f.StringArrayVar(&o.Only, "only", nil, "only the scenario with this `NAME`; "+
		"may be given more than once")
	f.BoolVar(&list, "list", false, "show the scenarios, and the sections of "+
		"PROTOCOL.md that they are about")
	f.BoolVar(&asJSON, "json", false, "print JSON: one object a scenario, one a line")
	f.DurationVar(&o.Timeout, "timeout", 30*time.Second, "`time` for one scenario")
	f.IntVar(&o.Jobs, "jobs", 0, "`how many` scenarios run at once "+
		"(default: the number of processors, at least 4)")
	return cmd
}

func (m *Main) listScenarios(asJSON bool) error {
	if asJSON {
		return writeJSON(m.Stdout, conformance.All())
	}
	t := tabwriter.NewWriter(m.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSECTION\tNEEDS\tWHAT")
	for _, s := range conformance.All() {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, s.Section, strings.Join(s.Needs, ", "), s.About)
	}
	return written(t.Flush())
}

// conform runs the scenarios and prints each result as it comes.
func (m *Main) conform(ctx context.Context, o conformance.Options, asJSON bool) error {
	count := map[conformance.Outcome]int{}
	lines := json.NewEncoder(m.Stdout)
	lines.SetEscapeHTML(false)
	var failed error
	o.Each = func(r conformance.Result) {
		count[r.Outcome]++
		var err error
		if asJSON {
			err = lines.Encode(r)
		} else {
			err = writeResult(m.Stdout, &r)
		}
		if failed == nil {
			failed = err
		}
	}
	start := time.Now()
	if _, err := conformance.Run(ctx, o); err != nil {
		return usage("%w", err)
	}
	if failed != nil {
		return written(failed)
	}
	if !asJSON {
		_, err := fmt.Fprintf(m.Stdout, "%d passed, %d failed, %d skipped in %.1f s\n",
			count[conformance.Passed],
			count[conformance.Failed], count[conformance.Skipped], time.Since(start).Seconds())
		if err != nil {
			return written(err)
		}
	}
	if count[conformance.Failed] > 0 {
		return exitWith(exitFailed)
	}
	return nil
}

// writeResult writes one result for people.
func writeResult(w io.Writer, r *conformance.Result) error {
	word := map[conformance.Outcome]string{conformance.Passed: "pass", conformance.Failed: "FAIL",
		conformance.Skipped: "skip"}[r.Outcome]
	_, err := fmt.Fprintf(w, "%s  %-22s  %s (section %s)\n", word, r.Name, r.About, r.Section)
	if r.Why != "" && err == nil {
		_, err = fmt.Fprintf(w, "      %s\n", r.Why)
	}
	for _, line := range r.Exchange {
		if err == nil {
			_, err = fmt.Fprintf(w, "      | %s\n", line)
		}
	}
	return err
}
