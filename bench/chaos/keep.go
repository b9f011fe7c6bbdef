package chaos

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
)

// history returns the history of all workers.
func (c *bed) history() *History {
	h := &History{Killed: map[int]int64{}, Frozen: map[int][]span{}, Forgets: c.forgets, Cut: c.cut}
	for _, w := range c.workers {
		h.Events = append(h.Events, w.events...)
		h.Hosts = append(h.Hosts, w.host)
		if w.killed > 0 {
			h.Killed[w.no] = w.killed
		}
		h.Frozen[w.no] = w.frozen
	}
	return h
}

// keep moves the run's directory, with the history in it, to name in the directory for violations.
// If the run has no violations, keep removes the directory instead.
func (c *bed) keep(name string) {
	if len(c.Violations) == 0 || c.Keep == "" {
		os.RemoveAll(c.dir)
		return
	}
	c.Kept = filepath.Join(c.Keep, name)
	err := os.MkdirAll(c.Keep, 0o700)
	if err == nil {
		os.RemoveAll(c.Kept)
		err = os.Rename(c.dir, c.Kept)
	}
	if err == nil {
		err = c.history().write(filepath.Join(c.Kept, "history.jsonl"))
	}
	if err != nil {
		c.Log("%v cannot be kept: %v", c.dir, err)
		c.Kept = c.dir
	}
}

// write writes the other fields of h in one line, and then the events in the order of their times.
func (h *History) write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	out := bufio.NewWriter(f)
	enc := json.NewEncoder(out)
	forgets := [][2]any{}
	for _, f := range h.Forgets {
		forgets = append(forgets, [2]any{f.keys, [2]int64{f.from, f.to}})
	}
	spans := func(ss []span) (ps [][2]int64) {
		for _, s := range ss {
			ps = append(ps, [2]int64{s.from, s.to})
		}
		return ps
	}
	frozen := map[int][][2]int64{}
	for w, ss := range h.Frozen {
		if len(ss) > 0 {
			frozen[w] = spans(ss)
		}
	}
	err = enc.Encode(map[string]any{"hosts": h.Hosts, "killed": h.Killed, "frozen": frozen,
		"forgets": forgets, "cut": h.Cut})
	events := slices.Clone(h.Events)
	slices.SortStableFunc(events, func(a, b Event) int { return int(max(-1, min(1, a.T-b.T))) })
	for _, e := range events {
		if err == nil {
			err = enc.Encode(e)
		}
	}
	if err != nil {
		return err
	}
	return out.Flush()
}
