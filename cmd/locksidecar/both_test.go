package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// stored returns the rows of `locks --store` as "KEY STORE WHOSE", in that order.
func (h *host) stored() (rows []string) {
	h.t.Helper()
	p := h.run("locks", "--store", "-o", "json")
	var locks []storedLock
	if err := json.Unmarshal([]byte(p.rest()), &locks); err != nil {
		h.t.Fatal(err)
	}
	p.ends(0)
	for _, l := range locks {
		rows = append(rows, fmt.Sprint(l.Key, " ", l.Store, " ", l.Whose))
	}
	slices.Sort(rows)
	return rows
}

// While keys move between two stores, this daemon has each store open more than once. A lock is
// listed once in each store that has it, under the name of that store. It does not matter which
// host holds the lock.
func TestLocksInTwoStoresAreListedOnceInEach(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "upstream: '" + testserver.StartRedis(t).URL() + "'\n" +
		"stores:\n  new: {upstream: '" + testserver.StartRedis(t).URL() + "'}\n" +
		"namespaces:\n  'x:': {both: new}\n  'n:': {store: new}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	first, second := newHost(t, "--config", file), newHost(t, "--config", file)
	for h, keys := range map[*host][]string{first: {"plain", "n:k", "x:k"}, second: {"x:o", "o"}} {
		for _, key := range keys {
			h.run("lock", key, "--", "sh", "-c", "echo up; read x").line()
		}
	}
	want := []string{
		"n:k new this host",
		"o default other host",
		"plain default this host",
		"x:k default this host", "x:k new this host",
		"x:o default other host", "x:o new other host",
	}
	var got []string
	for range 200 { // the daemon registers in the stores a moment after its start
		if got = first.stored(); slices.Equal(got, want) {
			return
		}
	}
	t.Errorf("listed:\n%s\nand not\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

// A reload that gives a store another name, or reaches it in another way, moves no keys.
func TestReloadsThatMoveNoKeys(t *testing.T) {
	here, there := testserver.StartRedis(t).URL(), testserver.StartRedis(t).URL()
	text := func(upstream string) string { return "upstream: '" + upstream + "'\n" }
	pair := func(store, both string) string {
		return text(here) + "stores:\n  r: {upstream: '" + there + "'}\nnamespaces:\n  'x:': {store: " +
			store + ", both: " + both + "}\n"
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(text(here)), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file)
	for _, c := range []struct {
		name, yaml string
		moved      bool
	}{
		{"other time limits", text(here + "?timeout=3s"), false},
		{"another name", "stores:\n  r: {upstream: '" + here + "'}\nnamespaces:\n  '': {store: r}\n",
			false},
		{"its first name, and its database", text(here + "/0"), false},
		{"other names of keys", text(here + "?prefix=l:"), true},
		{"back", text(here), true},
		{"into both", pair("default", "r"), false},
		{"from both to the new one", strings.Replace(pair("r", ""), ", both: ", "", 1), false},
		{"and to the old one", text(here), true},
	} {
		before := len(h.daemon.err.String())
		h.reloads(file, c.yaml, "reloaded")
		if moved := strings.Contains(h.daemon.err.String()[before:],
			`"event":"store_changed"`); moved != c.moved {
			t.Errorf("%s: said to move keys: %v", c.name, moved)
		}
	}
}
