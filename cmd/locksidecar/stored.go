package main

import (
	"strconv"

	"github.com/locksidecar/locksidecar/protocol"
)

// storedLock is one lock in a store, in the form of -o json.
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
	l := storedLock{Key: r.Key, Store: r.Store, Name: r.Name, Mode: r.Mode.String(), Holder: r.Holder,
		Whose: "unknown"}
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

const storedTitles = "KEY\tSTORE\tMODE\tWHOSE\tLEFT\tWAITERS\tHOLDER\tHOLDER IN STORE\tLOCK IN STORE"

func storedCells(l *storedLock) []any {
	waiters, by := "", ""
	if l.Waiters != nil {
		waiters = strconv.FormatInt(*l.Waiters, 10)
	}
	if l.By != nil {
		by = l.By.String()
		if l.By.Kind == protocol.HolderHere {
			by = l.By.Host
		}
	}
	return []any{l.Key, l.Store, l.Mode, l.Whose, leftOrDash(l.LeftMS), waiters, by, l.Holder, l.Name}
}
