package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/upstream/nearest"
)

func main() {
	// gRPC would write lines of plain text into the log. Calls return its faults as errors.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	os.Exit(newMain().Run(context.Background()))
}

// Main is one run of the program.
type Main struct {
	Args                  []string // without the name of the program
	Env                   config.Env
	Environ               []string // NAME=VALUE, to find misspelled names
	Stdin, Stdout, Stderr *os.File
}

func newMain() *Main {
	return &Main{Args: os.Args[1:], Env: os.LookupEnv, Environ: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}

// Run executes the command and returns the exit code. serve handles the end of ctx like SIGTERM.
func (m *Main) Run(ctx context.Context) int {
	root := m.root()
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var e *exitError
	if !errors.As(err, &e) {
		// The error comes from cobra itself.
		e = &exitError{code: exitUsage, err: err, hint: true}
	}
	if e.err != nil {
		fmt.Fprintf(m.Stderr, "%s: %v\n", cmd.CommandPath(), e.err)
	}
	if e.hint {
		if cmd.Name() == "help" {
			cmd = root // which lists the commands
		}
		fmt.Fprintf(m.Stderr, "Try '%s --help'.\n", cmd.CommandPath())
	}
	return e.code
}

func (m *Main) root() *cobra.Command {
	var showVersion bool
	root := &cobra.Command{
		Use:   "locksidecar",
		Short: "Locks between processes and hosts, over a Unix socket",
		Long: `locksidecar serves locks to the programs of this host over a Unix socket. It keeps them
in a store that hosts share (Redis, etcd, ZooKeeper, MySQL, PostgreSQL), or for this host alone.

One daemon runs on each host:

  locksidecar serve

A program that needs a lock runs under it, or uses a client library:

  locksidecar lock nightly-report -- ./report.sh`,
		Example: `  locksidecar serve --upstream redis://localhost:6379
  locksidecar lock deploy -- ./deploy.sh
  locksidecar locks`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if showVersion {
				return thisBuild().write(m.Stdout)
			}
			return cmd.Help()
		},
	}
	root.Flags().BoolVar(&showVersion, "version", false, "show this program's version")
	root.SetFlagErrorFunc(suggested)
	root.SetArgs(m.Args)
	root.SetIn(m.Stdin)
	root.SetOut(m.Stdout)
	root.SetErr(m.Stderr)
	root.AddCommand(m.serveCommand(), m.lockCommand(), m.statusCommand(), m.locksCommand(),
		m.healthCommand(), m.topCommand(), m.waitersCommand(), m.sessionsCommand(), m.unlockCommand(),
		m.whoCommand(), m.doctorCommand(),
		m.configCommand(), m.conformanceCommand(), m.versionCommand(), exitCodesTopic())
	knownTopics(root)
	return root
}

// knownTopics makes help refuse the name of a command that does not exist, and completion the name
// of a shell that it does not know.
func knownTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion":
			c.Args = unknownCommand
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				found, rest, err := root.Find(args)
				if err != nil {
					return err
				}
				return unknownCommand(found, rest)
			}
		}
	}
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var known []string
	for _, c := range cmd.Commands() {
		known = append(known, c.Name())
	}
	return didYouMean(fmt.Errorf("unknown command %q", args[0]), "", args[0], known)
}

// suggested adds to the error about an unknown flag the known flag with the nearest name. If a
// value is not a number, it says so without the name of a Go function.
func suggested(cmd *cobra.Command, err error) error {
	var bad *strconv.NumError
	if errors.As(err, &bad) {
		why := "is not a whole number"
		switch {
		case bad.Func == "ParseBool":
			why = "is neither true nor false"
		case errors.Is(bad, strconv.ErrRange):
			why = "is out of range"
		}
		return errors.New(strings.Replace(err.Error(), bad.Error(), why, 1))
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	return didYouMean(err, "--", unknown.GetSpecifiedName(), known)
}

func didYouMean(err error, prefix, name string, known []string) error {
	if near := nearest.Of(name, known); near != "" {
		return fmt.Errorf("%w; did you mean %q?", err, prefix+near)
	}
	return err
}
