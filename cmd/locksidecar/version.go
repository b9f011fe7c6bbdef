package main

import (
	_ "embed"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/protocol"
)

// version is the version of the program and the clients: of the present release, or of the next
// one. "make version V=1.2.3" changes it everywhere, in the clients as well.
var version = strings.TrimSpace(versionFile)

//go:embed VERSION
var versionFile string

// build describes this program.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Protocol int    `json:"protocol"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: version, Protocol: protocol.Version, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Commit = commitOf(info)
	}
	return b
}

// pseudo matches the version that "go install …@main" makes for a commit:
// v0.0.0-20260102030405-0123456789ab.
var pseudo = regexp.MustCompile(`[-.]\d{14}-([0-9a-f]{12})(?:\+|$)`)

// commitOf returns the commit that the program was built from, with -modified if the checkout had
// changes. It is empty for a module of a tagged release, which has no checkout, and if git was
// not available.
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

func (b build) write(w io.Writer) error {
	commit := ""
	if b.Commit != "" {
		commit = ", commit " + b.Commit
	}
	_, err := fmt.Fprintf(w, "locksidecar %s (protocol %d, %s, %s%s)\n",
		b.Version, b.Protocol, b.Go, b.Platform, commit)
	return err
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
			return m.printed(output, b, b.write)
		},
	}
	outputFlag(cmd, &output, "text", "json")
	return cmd
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("takes no arguments, but got %q", args[0])
	}
	return nil
}
