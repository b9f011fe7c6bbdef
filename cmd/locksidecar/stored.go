package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/protocol"
)

// storedLock is one lock as a store knows it, as -o json shows it.
type storedLock struct {
	Key     string `json:"key"`
	Store   string `json:"store"`
	Name    string `json:"name"`
	Mode    string `json:"mode"`
	Holder  string `json:"holder"`
	Whose   string `json:"whose"`
	LeftMS  *int64 `json:"left_ms,omitempty"`
	Waiters *int64 `json:"waiters,omitempty"`
	Base    string `json:"fence_base,omitempty"`

	// By is the holder, if the daemon can name it.
	By *protocol.Holder `json:"by,omitempty"`
}

var whose = [...]string{protocol.StoredElsewhere: "other host", protocol.StoredHere: "this host",
	protocol.StoredLeft: "left behind", protocol.StoredForeign: "foreign"}

func newStoredLock(r *protocol.StoredRow) storedLock {
	l := storedLock{Key: r.Key, Store: r.Store, Name: r.Name, Mode: modeName(r.Mode), Holder: r.Holder, Whose: "unknown"}
	if int(r.Whose) < len(whose) {
		l.Whose = whose[r.Whose]
	}
	if r.Left >= 0 {
		l.LeftMS = &r.Left
	}
	if r.Waiters >= 0 {
		l.Waiters = &r.Waiters
	}
	if len(r.By) > 0 {
		l.By = &r.By[0]
	}
	if r.Base > 0 {
		l.Base = strconv.FormatUint(r.Base, 10)
	}
	return l
}

func writeStored(w io.Writer, locks []storedLock) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tSTORE\tMODE\tWHOSE\tLEFT\tWAITERS\tHOLDER\tHOLDER IN STORE\tLOCK IN STORE")
	for i := range locks {
		l := &locks[i]
		waiters := "-"
		if l.Waiters != nil {
			waiters = strconv.FormatInt(*l.Waiters, 10)
		}
		by := ""
		if l.By != nil {
			by = l.By.String()
			if l.By.Kind == protocol.HolderHere {
				by = l.By.Host
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", terminal.Clean(l.Key), l.Store, l.Mode, l.Whose,
			leftOrDash(l.LeftMS), waiters, orDash(terminal.Clean(by)), orDash(terminal.Clean(l.Holder)),
			orDash(terminal.Clean(l.Name)))
	}
	return t.Flush()
}
