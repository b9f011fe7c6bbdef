package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/protocol"
)

// version is set when a release is built, with -ldflags "-X main.version=…".
var version = ""

// build is what is known of this program.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Protocol int    `json:"protocol"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: version, Protocol: protocol.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		dirty := ""
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				if s.Value == "true" {
					dirty = "-modified"
				}
			}
		}
		if b.Commit != "" {
			b.Commit += dirty
		}
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	return b
}

func (m *Main) versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show this program's version",
		Example: "  locksidecar version\n  locksidecar version -o json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			b := thisBuild()
			if output == "json" {
				return writeJSON(m.Stdout, b)
			}
			commit := ""
			if b.Commit != "" {
				commit = ", commit " + b.Commit
			}
			_, err := fmt.Fprintf(m.Stdout, "locksidecar %s (protocol %d, %s, %s%s)\n", b.Version, b.Protocol, b.Go, b.Platform, commit)
			return written(err)
		},
	}
	outputFlag(cmd, &output, "text", "json")
	return cmd
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("takes no arguments, and not %q", args[0])
	}
	return nil
}
