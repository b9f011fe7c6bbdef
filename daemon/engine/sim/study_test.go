package sim

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	allRows = flag.Bool("study", false, "TestStudy: all rows, and print them")
	write   = flag.Bool("write", false, "TestStudy: with -study, write them into STUDY.md")
)

const studyFile = "STUDY.md"

// studyTable is a table of STUDY.md, between <!-- name --> and <!-- end -->.
type studyTable struct {
	name string
	head []string
	rows []studyRow
}

// studyRow is a world, and what there is to say of it.
type studyRow struct {
	given []string // the first cells
	quick bool     // it is run in every test
	run   func() ([]string, *Failure)
}

func markdown(cells []string) string { return "| " + strings.Join(cells, " | ") + " |" }

func (s *studyTable) top() []string {
	return []string{markdown(s.head), "|" + strings.Repeat("---|", len(s.head))}
}

// lines are the table's rows in the text.
func (s *studyTable) lines(text string) []string {
	_, rest, _ := strings.Cut(text, "<!-- "+s.name+" -->\n")
	body, _, ok := strings.Cut(rest, "\n<!-- end -->")
	if !ok {
		return nil
	}
	return strings.Split(body, "\n")
}

// put replaces them.
func (s *studyTable) put(text string, lines []string) string {
	mark := "<!-- " + s.name + " -->\n"
	before, rest, _ := strings.Cut(text, mark)
	_, after, _ := strings.Cut(rest, "\n<!-- end -->")
	return before + mark + strings.Join(lines, "\n") + "\n<!-- end -->" + after
}

// TestStudy runs the worlds of STUDY.md and compares what comes of them with its tables:
// a few of each table, or all with -study.
func TestStudy(t *testing.T) {
	text, err := os.ReadFile(studyFile)
	if err != nil {
		t.Fatal(err)
	}
	was := string(text)
	for _, s := range studyTables() {
		t.Run(s.name, func(t *testing.T) { was = s.check(t, was) })
	}
	if *write && *allRows && !t.Failed() && !bytes.Equal(text, []byte(was)) {
		if err := os.WriteFile(studyFile, []byte(was), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// check is the text with the table as it is.
func (s *studyTable) check(t *testing.T, text string) string {
	began := time.Now()
	was, is := s.lines(text), append(s.top(), s.run(t)...)
	if *allRows {
		t.Logf("%v\n%s", time.Since(began).Round(time.Millisecond), strings.Join(is, "\n"))
	}
	if *write && *allRows {
		return s.put(text, is)
	}
	if len(was) != len(is) {
		t.Errorf("%s: the table has %d lines and should have %d: %s", studyFile, len(was),
			len(is), howToWrite)
		return text
	}
	for n, line := range is {
		if !strings.HasPrefix(was[n], line) {
			t.Errorf("%s says\n%s\nand it is\n%s\n%s", studyFile, was[n], line, howToWrite)
		}
	}
	return text
}

const howToWrite = "go test ./daemon/engine/sim -run TestStudy -count=1 -timeout 30m -args -study -write"

// run is the rows' lines; of those that are not run, as much as is given.
func (s *studyTable) run(t *testing.T) []string {
	lines := make([]string, len(s.rows))
	var wg sync.WaitGroup
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	for n, row := range s.rows {
		lines[n] = strings.TrimSuffix(markdown(row.given), "|")
		if !row.quick && !*allRows {
			continue
		}
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			cells, failure := row.run()
			if failure != nil {
				t.Errorf("%v: %v", row.given, failure)
			}
			lines[n] = markdown(append(row.given, cells...))
		})
	}
	wg.Wait()
	return lines
}

// How figures are printed.

func span(ns int64) string {
	switch {
	case ns == 0:
		return "0"
	case ns < 10*ms:
		return fmt.Sprintf("%d.%02d ms", ns/ms, ns%ms*100/ms)
	case ns < sec:
		return fmt.Sprintf("%d ms", ns/ms)
	}
	return fmt.Sprintf("%d.%d s", ns/sec, ns%sec*10/sec)
}

func percent(permille int) string { return fmt.Sprintf("%d.%d %%", permille/10, permille%10) }

// endless is a bound that is none.
const endless = 1 << 40

func bound(n int) string {
	if n >= endless {
		return "∞"
	}
	return fmt.Sprint(n)
}

// Hosts that all want a key the whole time have it in turns.
func TestHostsTakeTurns(t *testing.T) {
	for _, hosts := range []int{2, 10} {
		p := studyProfile()
		p.Hosts, p.Clients = hosts, 4
		r, failure := shareKey(p, ms, 5*sec)
		if failure != nil {
			t.Fatal(failure)
		}
		// A turn is nine holds, and three ways to the store and back or so.
		if round := int64(hosts) * 13 * ms; r.jain < 0.99 || r.gap > 2*round {
			t.Errorf("%d hosts: Jain's index %.3f, and one had nothing for %s", hosts, r.jain, span(r.gap))
		}
	}
}

// What lingers is given up at once for another host, and for its tries.
func TestWhatLingersKeepsNobodyOut(t *testing.T) {
	p := studyProfile()
	p.Hosts, p.Clients, p.Keys, p.Linger, p.Pause = 4, 8, 32, 2*sec, -1
	r, failure := strollAbout(p, affinity{stays: 5}, 300*ms, 60*sec)
	if failure != nil {
		t.Fatal(failure)
	}
	if len(r.gives) == 0 || r.lone == 0 {
		t.Fatal("nothing has been given up, or nobody has tried")
	}
	if wait := quantile(r.moves, 990); r.wrong*100 > r.lone || wait > 20*ms {
		t.Errorf("%d of %d tries were told busy though nobody held; one host waited %s for another to give up", r.wrong, r.lone, span(wait))
	}
}
