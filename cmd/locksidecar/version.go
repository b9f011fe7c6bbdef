package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/protocol"
)

// version is the one that everything here has: the release that this is, or
// will be. "make version V=1.2.3" changes it, in the clients too.
var version = strings.TrimSpace(versionFile)

//go:embed VERSION
var versionFile string

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
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Commit = commitOf(info)
	}
	return b
}

// pseudo is what "go install …@main" makes of a commit: v0.0.0-20260102030405-0123456789ab.
var pseudo = regexp.MustCompile(`[-.]\d{14}-([0-9a-f]{12})(?:\+|$)`)

// commitOf is the commit that the program was built from, as far as Go noted
// it; with -modified when the checkout had changes. Empty for a module of a
// tagged release, which has no checkout, and where git was not at hand.
func commitOf(info *debug.BuildInfo) string {
	commit, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-modified"
		}
	}
	if commit != "" {
		return commit + modified
	}
	if m := pseudo.FindStringSubmatch(info.Main.Version); m != nil {
		return m[1]
	}
	return ""
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
