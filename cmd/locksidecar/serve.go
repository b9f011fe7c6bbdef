package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/upstream"
)

func (m *Main) serveCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Run the daemon that serves locks on this host",
		Long: `Run the daemon: it listens on a Unix socket, serves locks to whoever connects, and
keeps them in the store that --upstream names. Hosts that name the same store
share their locks; memory: (the default) is for this host alone and needs nothing.

It stays in the foreground and logs to standard error. SIGTERM or SIGINT makes it
drain: it grants nothing new, gives holders --drain to finish, releases everything
and ends. A second one ends it at once; what was held then stays taken until its
lease is over.

Every flag is also a field of the configuration file and an environment variable:
--max-wait, max_wait, LOCKSIDECAR_MAX_WAIT. Flags win over the environment, and
that over the file. A password for Redis is given in the file, in a file of its own
(redis.password_file) or in LOCKSIDECAR_REDIS_PASSWORD.

` + exitCodesText,
		Example: `  # for this host alone, socket in the usual place
  locksidecar serve

  # locks shared by all hosts that use this Redis
  locksidecar serve --upstream redis://redis.internal:6379

  # from a file; see what it would do first
  locksidecar config check --config /etc/locksidecar.yaml
  locksidecar serve --config /etc/locksidecar.yaml`,
		DisableFlagsInUseLine: true,
		Args:                  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file, m.Env, cmd.Flags())
			if err != nil {
				return &exitError{code: exitUsage, err: err}
			}
			return m.serve(cmd.Context(), c)
		},
	}
	configFlag(cmd, &file)
	config.AddFlags(cmd.Flags(), m.Env)
	completeSettings(cmd)
	return cmd
}

func configFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "config", "", "`file` with the configuration, YAML (default: "+config.FileVariable+", else none)")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
}

func completeSettings(cmd *cobra.Command) {
	_ = cmd.MarkFlagFilename("socket", "sock")
	_ = cmd.RegisterFlagCompletionFunc("upstream", cobra.FixedCompletions(
		[]string{"memory:", "redis://", "rediss://", "unix:///"}, cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("log-format", cobra.FixedCompletions([]string{"auto", "json", "console"}, cobra.ShellCompDirectiveNoFileComp))
}

// serve runs the daemon until a signal or the end of ctx. Everything is ended in
// the reverse order of its start.
func (m *Main) serve(ctx context.Context, c *config.Config) error {
	p, err := planStore(c)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	log := m.newLogger(c.Log)
	defer func() { _ = log.Sync() }()

	stop := make(chan os.Signal, 2)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(stop)

	store, closeStore, err := p.open(ctx, log)
	if err != nil {
		return err
	}
	defer closeStore()
	if least := store.Info().MinTTL; c.TTL < least {
		return exit(exitUsage, "ttl (%s): %v is too short for this store, the least is %v", c.From(config.Find("ttl")), c.TTL, least)
	}
	d, err := daemon.Listen(daemonConfig(c, store, log))
	if err != nil {
		return listenExit(err)
	}
	m.announce(log, c, p)
	return drive(ctx, d, stop, log)
}

// drive serves until the first signal, which drains, and is cut short by the
// second.
func drive(ctx context.Context, d *daemon.Daemon, stop <-chan os.Signal, log *zap.Logger) error {
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx) }()
	var cut os.Signal
	for signals := 0; ; {
		select {
		case err := <-served:
			switch {
			case err != nil:
				return exit(exitInternal, "serve: %w", err)
			case cut != nil:
				return exitWith(signalCode(cut))
			}
			log.Info("stopped", zap.String("event", "stopped"))
			return nil
		case sig := <-stop:
			if signals++; signals == 1 {
				log.Info("told to end", zap.String("event", "signal"), zap.Stringer("signal", sig))
				drain()
				continue
			}
			cut = sig
			log.Warn("told to end at once", zap.String("event", "signal"), zap.Stringer("signal", sig))
			d.Stop()
		}
	}
}

func daemonConfig(c *config.Config, store upstream.Store, log *zap.Logger) daemon.Config {
	return daemon.Config{
		Socket: c.Socket, SocketMode: c.SocketMode, SocketGroup: c.SocketGroup,
		Store: store, TTL: c.TTL, MaxWait: c.MaxWait,
		Drain:     max(c.Drain, 1), // 0 would be the daemon's default
		HandOvers: c.HandOvers, HandOverTime: c.HandOverTime,
		Limits: daemon.Limits{
			MaxConns: c.Limits.MaxConns, MaxHolds: c.Limits.MaxHolds, MaxWaiters: c.Limits.MaxWaiters,
			MaxFrame: c.Limits.MaxFrame, OutBuffer: c.Limits.OutBuffer,
		},
		Log: log, Version: thisBuild().Version,
	}
}
