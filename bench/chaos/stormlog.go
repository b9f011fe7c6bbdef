package chaos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// logRules says which lines a daemon's log may have.
type logRules struct {
	messages []string        // the beginnings of messages that are in the program's source
	events   map[string]bool // the events that the documents name
	err      error           // the source or a document could not be read
}

var logCall = regexp.MustCompile(`\.(?:Error|Warn|Info|Debug|DPanic)\(("(?:[^"\\]|\\.)*")`)

// eventWord matches the name of an event in the documents.
var eventWord = regexp.MustCompile("`([a-z_]+)`")

// newLogRules reads the messages from the source, and the events from the documents for operators.
func newLogRules() *logRules {
	root, err := testserver.SourceRoot()
	r := &logRules{err: err, messages: []string{"acquired", "refused", "released", "lock lost",
		"session_begin", "session_end"}, events: map[string]bool{}}
	for _, dir := range []string{"cmd", "daemon", "upstream", "renewer", "cache"} {
		err := filepath.WalkDir(filepath.Join(root, dir),
			func(path string, _ fs.DirEntry, err error) error {
				if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
					strings.Contains(path, "testserver") {
					return err
				}
				b, err := os.ReadFile(path)
				for _, m := range logCall.FindAllSubmatch(b, -1) {
					if text, err := strconv.Unquote(string(m[1])); err == nil && text != "" {
						r.messages = append(r.messages, text)
					}
				}
				return err
			})
		if err != nil {
			r.err = err
		}
	}
	for _, name := range []string{"failures", "runbook", "security", "stores", "upgrade", "configure",
		"monitoring"} {
		b, err := os.ReadFile(filepath.Join(root, "docs", "operate", name+".md"))
		if err != nil {
			r.err = err
		}
		for _, m := range eventWord.FindAllSubmatch(b, -1) {
			r.events[string(m[1])] = true
		}
	}
	return r
}

// logLine has the fields of all lines.
type logLine struct {
	Level, Msg, Event, Error, Store string
	TS                              time.Time
}

// plain matches lines that are not JSON. Commands that end print them, and so do programs that were
// called instead of locksidecar. A Redis client prints them about servers that are away, because it
// has no other way to report them.
var plain = regexp.MustCompile(`^(locksidecar serve: |Try 'locksidecar |cannot run$|redis: \d{4}|\S*/locksidecar: \d+: )`)

// unexplained is the beginning of the report about a line that nothing explains.
const unexplained = "nothing explains"

// explained returns what explains a daemon's line of level error. It returns "" if nothing does.
func (s *storm) explained(st *site, l *logLine) string {
	at := now() - int64(time.Since(l.TS))
	did := func(words ...string) bool {
		return s.wasDone(span{at - int64(time.Second), at + int64(time.Second)}, st.did(words...))
	}
	switch l.Event {
	case "reload_refused":
		if did("reload", "takeover") {
			return "a configuration was bad, or named a store that was away"
		}
	case "takeover_failed":
		if did("takeover", "other users") {
			return "a successor was refused, was killed or took too long"
		}
	case "store_down", "store_session_lost", "store_failed":
		if s.troubledAt(at) || late.MatchString(l.Error) || did("full disk") &&
			strings.Contains(l.Error, "no space") {
			return "a store was away"
		}
	case "":
		if did("full disk") && strings.HasPrefix(l.Msg, "cannot extend the session") &&
			strings.Contains(l.Error, "no space left on device") {
			return "a disk was full"
		}
	}
	return ""
}

// troubledAt reports whether something was done to a store shortly before a moment.
func (s *storm) troubledAt(at int64) bool {
	const after = int64(30 * time.Second)
	return slices.ContainsFunc(s.depots, func(d *depot) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.ContainsFunc(d.troubles, func(t span) bool {
			return t.from-int64(time.Second) <= at && at <= max(t.to, t.to+after) || t.to == forever &&
				t.from-int64(time.Second) <= at
		})
	})
}

// never has the events that nothing in a storm explains.
var never = []string{"stuck", "admin_failed", "page_failed", "accept_failed", "log_lagging",
	"spans_dropped", "tracing_failed", "tracing_refused",
	"park_failed", "parked_unusable", "parked", "notify_failed"}

// judgeLogs checks every line of every daemon, and returns the number of lines of level error.
func (s *storm) judgeLogs() (errors int) {
	if s.rules.err != nil {
		s.fail("broken", "the source cannot be read: %v", s.rules.err)
	}
	told := map[string]bool{}
	fail := func(p *process, what string, line []byte) {
		if key := what + string(line[:min(len(line), 30)]); len(told) < 10 && !told[key] {
			told[key] = true
			s.fail("log", "%s in %s: %s", what, filepath.Base(filepath.Dir(p.log))+"/"+filepath.Base(p.log),
				line)
		}
	}
	seen := map[string]bool{}
	for _, p := range s.all {
		if seen[p.log] {
			continue
		}
		st := s.sites[slices.IndexFunc(s.sites, func(st *site) bool {
			return st.dir == filepath.Dir(p.log)
		})]
		seen[p.log] = true
		b, err := os.ReadFile(p.log)
		if err != nil {
			s.fail("broken", "%v", err)
		}
		if crashed.Match(b) {
			continue // the fault is reported
		}
		in := bufio.NewScanner(bytes.NewReader(b))
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			line := in.Bytes()
			errors += one(s.judgeLine(st, line, func(what string) { fail(p, what, line) }))
		}
	}
	return errors
}

// judgeLine checks a line of the log of a site, and reports whether it is of level error.
func (s *storm) judgeLine(st *site, line []byte, fail func(what string)) (isError bool) {
	var l logLine
	if json.Unmarshal(line, &l) != nil {
		if !plain.Match(line) {
			fail("a line that is not JSON")
		}
		return false
	}
	if !slices.ContainsFunc(s.rules.messages, func(m string) bool {
		return strings.HasPrefix(l.Msg, m)
	}) {
		fail("a message that the source does not have")
	}
	isError = l.Level != "debug" && l.Level != "info" && l.Level != "warn"
	if isError && s.explained(st, &l) == "" {
		fail(unexplained)
	}
	if l.Event != "" && !s.rules.events[l.Event] {
		fail("an event that no document has")
	}
	if slices.Contains(never, l.Event) {
		fail("an event that must not occur")
	}
	return isError
}
