package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
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
	if r.Base > 0 {
		l.Base = strconv.FormatUint(r.Base, 10)
	}
	return l
}

// storedLocks lists what the daemon's stores know.
func (m *Main) storedLocks(ctx context.Context, socket, prefix string, asJSON bool) error {
	socket, err := m.clientSocket(socket)
	if err != nil {
		return err
	}
	c, err := dial(ctx, socket, client.Options{Name: "locksidecar locks"})
	if err != nil {
		return err
	}
	defer c.Close()
	locks := []storedLock{} // and not null in JSON
	for after := ""; ; {
		rows, next, err := c.Stored(ctx, prefix, after, 0)
		if err != nil {
			return clientExit(err, socket)
		}
		for i := range rows {
			locks = append(locks, newStoredLock(&rows[i]))
		}
		if after = next; after == "" {
			break
		}
	}
	if asJSON {
		return writeJSON(m.Stdout, locks)
	}
	return written(writeStored(m.Stdout, locks))
}

func writeStored(w io.Writer, locks []storedLock) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tSTORE\tMODE\tWHOSE\tLEFT\tWAITERS\tHOLDER\tNAME THERE")
	for i := range locks {
		l := &locks[i]
		left, waiters := "-", "-"
		if l.LeftMS != nil {
			left = (time.Duration(*l.LeftMS) * time.Millisecond).Round(100 * time.Millisecond).String()
		}
		if l.Waiters != nil {
			waiters = strconv.FormatInt(*l.Waiters, 10)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Key, l.Store, l.Mode, l.Whose, left, waiters, orDash(l.Holder), orDash(l.Name))
	}
	return t.Flush()
}
