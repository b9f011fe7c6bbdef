package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/top"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// answerTime is how long the daemon may take for a request that does not wait for a lock.
const answerTime = 5 * time.Second

// socketFlag adds --socket to a client command.
func socketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", "",
		"`path` of the daemon's socket (default: LOCKSIDECAR_SOCKET, else the default of serve)")
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
		// too long, or the working directory no longer exists: use the path as given
		return path, nil
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

// connect connects a command of that name to the daemon whose socket is given. It also returns the
// socket's path.
func (m *Main) connect(ctx context.Context, given, command string) (*client.Client, string, error) {
	socket, err := m.clientSocket(given)
	if err != nil {
		return nil, "", err
	}
	c, err := dial(ctx, socket, client.Options{Name: "locksidecar " + command})
	return c, socket, err
}

// oneKey returns the key that is the only argument.
func oneKey(args []string) (string, error) {
	switch len(args) {
	case 0:
		return "", usage("no key is named")
	case 1:
	default:
		return "", usage("takes one key, not %d", len(args))
	}
	if err := protocol.CheckKey(args[0]); err != nil {
		return "", usage("%w", err)
	}
	return args[0], nil
}

// outputFlag adds -o to a command.
func outputFlag(cmd *cobra.Command, output *string, formats ...string) {
	cmd.Flags().StringVarP(output, "output", "o", formats[0],
		"`format`: "+formats[0]+" or "+formats[1])
	completeWords(cmd, "output", formats...)
	check := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(formats, *output) {
			return usage("-o %s: is none of %s", *output, strings.Join(formats, ", "))
		}
		if check != nil {
			return check(cmd, args)
		}
		return nil
	}
}

// completeWords completes the value of a flag with words.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// printed prints v as JSON, or as text with the function write.
func (m *Main) printed(output string, v any, write func(io.Writer) error) error {
	if output == "json" {
		return writeJSON(m.Stdout, v)
	}
	return written(write(m.Stdout))
}

// printRows prints rows as JSON or as a table: see writeTable.
func printRows[R any](m *Main, output string, rows []R, titles string, cells func(*R) []any) error {
	rows = append([]R{}, rows...) // nil would be null in JSON
	return m.printed(output, rows, func(w io.Writer) error {
		return writeTable(w, rows, titles, cells)
	})
}

// writeTable writes a table with titles that are separated by tabs. An empty cell is "-".
func writeTable[R any](w io.Writer, rows []R, titles string, cells func(*R) []any) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, titles)
	for i := range rows {
		var line []string
		for _, cell := range cells(&rows[i]) {
			line = append(line, top.OrDash(terminal.Clean(fmt.Sprint(cell))))
		}
		fmt.Fprintln(t, strings.Join(line, "\t"))
	}
	return t.Flush()
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
