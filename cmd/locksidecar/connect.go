package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// answerTime is how long the daemon may take for what it can do at once.
const answerTime = 5 * time.Second

// socketFlag adds --socket to a client command.
func socketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", "", "`path` of the daemon's socket (default: LOCKSIDECAR_SOCKET, else the place where serve puts it)")
	_ = cmd.MarkFlagFilename("socket", "sock")
}

// clientSocket is the absolute path of the socket to connect to.
func (m *Main) clientSocket(given string) (string, error) {
	path := config.ClientSocket(given, m.Env, os.Geteuid())
	if err := config.CheckSocket(path); err != nil {
		return "", usage("socket %s: %w", path, err)
	}
	abs, err := filepath.Abs(path)
	if err != nil || config.CheckSocket(abs) != nil {
		return path, nil // too long, or we stand in a place that is gone: as it was given
	}
	return abs, nil
}

// dial connects to the daemon; its error has an exit code.
func dial(ctx context.Context, socket string, opts client.Options) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c, err := client.Dial(ctx, socket, opts)
	if err != nil {
		return nil, clientExit(err, socket)
	}
	return c, nil
}

// outputFlag adds -o to a command.
func outputFlag(cmd *cobra.Command, output *string, formats ...string) {
	cmd.Flags().StringVarP(output, "output", "o", formats[0], "`format`: "+formats[0]+" or "+formats[1])
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	check := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(formats, *output) {
			return usage("-o %s: is none of %v", *output, formats)
		}
		if check != nil {
			return check(cmd, args)
		}
		return nil
	}
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return written(enc.Encode(v))
}

// written gives an error of writing to standard output its exit code.
func written(err error) error {
	if err != nil {
		return exit(exitInternal, "write: %w", err)
	}
	return nil
}

// completeKeys completes the first argument with keys that the daemon knows.
func (m *Main) completeKeys(socket *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), 500*time.Millisecond)
		defer cancel()
		path, err := m.clientSocket(*socket)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := client.Dial(ctx, path, client.Options{Name: "locksidecar completion"})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		rows, _, err := c.List(ctx, typed, "", 100)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		keys := make([]string, len(rows))
		for i, r := range rows {
			keys[i] = r.Key
		}
		return keys, cobra.ShellCompDirectiveNoFileComp
	}
}
