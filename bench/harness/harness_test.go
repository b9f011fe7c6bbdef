package harness

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHistQuantilesAreWithinItsResolution(t *testing.T) {
	var a, b Hist
	var all []time.Duration
	for i := range 20000 {
		d := time.Duration(rand.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		if i%2 == 0 {
			a.Add(d)
		} else {
			b.Add(d)
		}
	}
	p, err := json.Marshal(&b)
	if err != nil {
		t.Fatal(err)
	}
	var c Hist
	if err := json.Unmarshal(p, &c); err != nil {
		t.Fatal(err)
	}
	a.Merge(&c)
	slices.Sort(all)
	if a.N() != 20000 || a.Max() != all[len(all)-1] {
		t.Errorf("%d values, the longest %v", a.N(), a.Max())
	}
	for _, q := range []float64{0.01, 0.5, 0.99, 0.999} {
		want := all[int(q*float64(len(all)))-1]
		if got := a.Quantile(q); float64(got) < 0.97*float64(want) || float64(got) > 1.05*float64(want) {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

func TestHistBuckets(t *testing.T) {
	last := -1
	for v := uint64(0); v < 1<<44; v += 1 + v/50 {
		b := bucketOf(v)
		if b < last || b == histBuckets-1 {
			break
		}
		if v > highest(b) || b > 0 && v <= highest(b-1) {
			t.Fatalf("%d is not in bucket %d, %d to %d", v, b, highest(b-1)+1, highest(b))
		}
		last = b
	}
	if highest(last) < uint64(time.Hour) {
		t.Errorf("the range ends at %v", time.Duration(highest(last)))
	}
	if bucketOf(1<<63) != histBuckets-1 {
		t.Error("the longest does not fit")
	}
}

func TestSharedSeesOverlapsHandoffsAndFallingFences(t *testing.T) {
	path, err := NewShared(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenShared(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, step := range []struct {
		id, fence uint64
		stay      bool
		want      Seen
	}{
		{1, 10, false, Seen{Handoff: true}},
		{1, 11, false, Seen{}},
		{2, 12, true, Seen{Handoff: true}},
		{3, 12, false, Seen{Handoff: true, Overlap: true, FenceFault: true}},
		{2, 13, false, Seen{Handoff: true, Overlap: true}},
		{1, 14, false, Seen{Handoff: true}},
	} {
		if got := s.Enter(step.id, step.fence); got != step.want {
			t.Errorf("step %d: %+v", i, got)
		}
		if !step.stay {
			s.Leave(step.id)
		}
	}
}

func TestProcOfOurselves(t *testing.T) {
	if CPU(os.Getpid()) == 0 || RSS(os.Getpid()) == 0 {
		t.Skip("no /proc here")
	}
	before := CPU(os.Getpid())
	for CPU(os.Getpid()) == before { // uses CPU time until the kernel has counted it
	}
	if rss := RSS(os.Getpid()); rss < 1<<20 || rss > 1<<36 {
		t.Errorf("%d bytes resident", rss)
	}
}

func TestReport(t *testing.T) {
	r := Report{Began: time.Unix(0, 0)}
	r.Add("scene", "one", Metrics{"ops_s": 100, "p50_us": 5})
	r.Add("scene", "two", Metrics{"ops_s": 50})
	r.Add("scene", "one", Metrics{"ops_s": 300, "p50_us": 7})
	r.Add("scene", "two", Metrics{"ops_s": 240})
	if got := r.Ratio("scene", "two", "one", "ops_s"); !slices.Equal(got, []float64{0.5, 0.8}) {
		t.Errorf("ratios a round: %v", got)
	}
	r.AtLeast("two to one", r.Ratio("scene", "two", "one", "ops_s"), 0.6, 0.7)
	r.Add("other", "a|b", Metrics{"x": 1})
	r.AtMost("something", []float64{3}, 2)
	r.AtLeast("never measured", nil, 1, 0)
	if c := r.Checks; !c[0].OK || c[0].Value.Median != 0.65 || c[1].OK || c[2].OK {
		t.Errorf("%+v", c)
	}
	r.NoteOthers()
	if len(r.Notes) != 0 {
		t.Errorf("notes of nothing: %v", r.Notes)
	}
	r.Add("scene", "three", Metrics{othersColumn: 40})
	r.NoteOthers()
	if len(r.Notes) != 1 {
		t.Errorf("nothing is said of a busy machine")
	}
	dir := t.TempDir()
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	md, err := os.ReadFile(filepath.Join(dir, "results.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| two to one | 0.65 | 0.50–0.80 | ≥ 0.60 | 0.70 | met |",
		"| one | 2 | 200 | 100–300 | 6.00 |  |", "missed", "not measured", `| a\|b | 1 | 1.00 |`} {
		if !strings.Contains(string(md), want) {
			t.Errorf("no %q in\n%s", want, md)
		}
	}
	p, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(p, &back); err != nil || len(back.Rows) != 4 ||
		back.Rows[0].Rounds[1]["ops_s"] != 300 {
		t.Errorf("%v %+v", err, back)
	}
}
