package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// ms is the unit of the times in handmade histories.
const ms = int64(time.Millisecond)

// told builds histories by hand.
type told struct {
	History
	n int64
}

func newTold() *told {
	return &told{History: History{Hosts: []int{0, 1, 2, 0}, Killed: map[int]int64{},
		Frozen: map[int][]span{}}}
}

func (h *told) add(w int, e string, at int64, more Event) {
	more.E, more.W, more.T = e, w, at*ms
	h.Events = append(h.Events, more)
}

// got adds a grant to a worker: when it was requested, when it was answered, and until when it is
// valid.
func (h *told) got(w int, key string, fence uint64, asked, at, until int64) (n int64) {
	return h.grant(w, key, Event{}, fence, asked, at, until)
}

func (h *told) grant(w int, key string, ask Event, fence uint64, asked, at, until int64) (n int64) {
	h.n++
	ask.N, ask.K, ask.O = h.n, key, 1
	h.add(w, evAsk, asked, ask)
	h.add(w, evGot, at, Event{N: h.n, R: "ok", F: fence, U: until * ms})
	return h.n
}

func (h *told) gave(w int, n, at, answered int64) {
	h.add(w, evGive, at, Event{N: n})
	h.add(w, evGave, answered, Event{N: n, R: "ok"})
}

// held adds a hold, from its request to its end.
func (h *told) held(w int, key string, fence uint64, asked, at, gave, given int64) {
	h.gave(w, h.got(w, key, fence, asked, at, at+1000), gave, given)
}

// checks returns the names of the checks that find something.
func (h *told) checks(t *testing.T) []string {
	t.Helper()
	found, _ := h.Check()
	m, more := h.Model(time.Minute)
	if m.Unknown > 0 {
		t.Errorf("the model does not decide %d partitions", m.Unknown)
	}
	var names []string
	for _, v := range append(found, more...) {
		t.Log(v)
		names = append(names, v.Check)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// finds tests that the checks find exactly want in one history.
func finds(t *testing.T, name string, tell func(h *told), want ...string) {
	t.Run(name, func(t *testing.T) {
		h := newTold()
		tell(h)
		if found := h.checks(t); !slices.Equal(found, want) {
			t.Errorf("found %v, want %v", found, want)
		}
	})
}

func TestSoundHistories(t *testing.T) {
	const shared = 1
	for name, tell := range map[string]func(h *told){
		"one after the other": func(h *told) {
			h.held(0, "k", 1, 0, 10, 20, 30)
			h.held(1, "k", 2, 0, 25, 40, 50)
			h.held(0, "k", 3, 35, 45, 60, 70)
		},
		"keys of their own": func(h *told) {
			h.held(0, "a", 1, 0, 10, 200, 210)
			h.held(1, "b", 1, 0, 10, 200, 210)
		},
		"readers together": func(h *told) {
			h.held(0, "k", 1, 0, 10, 15, 20)
			for w := range 3 {
				n := h.grant(w, "k", Event{M: shared}, 2, 5, 30+int64(w), 1000)
				h.gave(w, n, 100, 110)
			}
			h.held(1, "k", 3, 105, 120, 130, 140)
		},
		"re-entry": func(h *told) {
			n := h.got(0, "k", 7, 0, 10, 1000)
			again := h.grant(0, "k", Event{Of: n}, 7, 20, 30, 1000)
			h.gave(0, again, 40, 45)
			h.gave(0, n, 50, 60)
			h.held(3, "k", 8, 15, 61, 70, 80)
		},
		"run out, and released late": func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 100)
			h.held(1, "k", 2, 20, 110, 120, 130)
			h.add(0, evLost, 200, Event{N: n, R: "silence"})
			h.add(0, evGive, 210, Event{N: n})
			h.add(0, evGave, 220, Event{N: n, R: "not_held"})
		},
		"lost, and noticed a little later": func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.add(0, evState, 100, Event{N: n, U: 1000 * ms})
			h.held(3, "k", 2, 20, 110, 120, 130)
			h.add(0, evLost, 111, Event{N: n, R: "connection"})
		},
		"killed while it held": func(h *told) {
			h.got(0, "k", 1, 0, 10, 1000)
			h.Killed[0] = 50 * ms
			h.held(3, "k", 2, 20, 60, 70, 80)
		},
		"a grant that came too late": func(h *told) {
			h.got(0, "k", 1, 0, 500, 400)
			h.held(1, "k", 2, 0, 450, 600, 610)
		},
		"refused": func(h *told) {
			h.held(0, "k", 1, 0, 10, 100, 110)
			h.n++
			h.add(1, evAsk, 20, Event{N: h.n, K: "k", O: 1, Wait: 10})
			h.add(1, evGot, 31, Event{N: h.n, R: "timeout"})
		},
		"the store forgot": func(h *told) {
			h.Forgets = []forget{{span: span{50 * ms, 150 * ms}}}
			h.held(0, "k", 1, 0, 10, 200, 210)
			h.held(1, "k", 3, 60, 70, 100, 110)
			h.held(0, "k", 4, 160, 220, 230, 240)
		},
		"forgotten, and the word of it on its way": func(h *told) {
			h.Forgets = []forget{{span: span{50 * ms, 150 * ms}}}
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.add(0, evState, 102, Event{N: n, U: 1000 * ms})
			h.held(3, "k", 2, 20, 100, 110, 120)
			h.add(0, evLost, 103, Event{N: n, R: "gone"})
			h.add(0, evGive, 104, Event{N: n})
			h.add(0, evGave, 105, Event{N: n, R: "gone"})
		},
		"waited while the store forgot, and again at once": func(h *told) {
			h.Forgets = []forget{{span: span{20 * ms, 150 * ms}}}
			h.held(0, "k", 1, 0, 30, 40, 50)
			n := h.got(3, "k", 2, 25, 60, 1000)
			h.add(3, evGive, 70, Event{N: n})
			h.add(3, evGave, 110, Event{N: n, R: "gone"})
			h.held(0, "k", 3, 65, 100, 120, 130)
		},
		"cut off from between": func(h *told) {
			h.Cut = map[int][]int64{0: {50 * ms}}
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.add(0, evState, 70, Event{N: n, U: 1000 * ms})
			h.held(3, "k", 2, 20, 60, 80, 90)
			h.add(0, evLost, 75, Event{N: n, R: "connection"})
			h.add(0, evGive, 76, Event{N: n})
			h.add(0, evGave, 77, Event{N: n, R: "connection"})
		},
		"cut off, and its release answered by that": func(h *told) {
			h.Cut = map[int][]int64{0: {50 * ms}}
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.held(3, "k", 2, 20, 60, 80, 90)
			h.gave(0, n, 65, 70)
		},
		"stood still, and was late": func(h *told) {
			h.Frozen[0] = []span{{20 * ms, 60_000 * ms}}
			h.n++
			h.add(0, evAsk, 10, Event{N: h.n, K: "k", O: 1, Wait: 100})
			h.add(0, evGot, 60_010, Event{N: h.n, R: "timeout"})
		},
	} {
		finds(t, name, tell)
	}
}

func TestViolationsAreFound(t *testing.T) {
	const shared = 1
	for name, c := range map[string]struct {
		tell func(h *told)
		want []string
	}{
		"two holders of two daemons": {func(h *told) {
			h.held(0, "k", 1, 0, 10, 200, 210)
			h.held(1, "k", 2, 0, 100, 300, 310)
		}, []string{"two holders"}},
		"two holders of one": {func(h *told) {
			h.held(0, "k", 1, 0, 10, 200, 210)
			h.held(3, "k", 2, 0, 100, 300, 310)
		}, []string{"model", "two holders"}},
		"a reader beside a writer": {func(h *told) {
			h.held(0, "k", 1, 0, 10, 200, 210)
			h.gave(1, h.grant(1, "k", Event{M: shared}, 2, 0, 100, 1000), 300, 310)
		}, []string{"two holders"}},
		"granted before the other's validity is over": {func(h *told) {
			h.got(0, "k", 1, 0, 10, 1000)
			h.held(1, "k", 2, 20, 900, 950, 960)
		}, []string{"two holders"}},
		"an extended validity": {func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 100)
			h.add(0, evState, 90, Event{N: n, U: 400 * ms})
			h.held(1, "k", 2, 20, 300, 310, 320)
		}, []string{"two holders"}},
		"one who stands still is taken for gone": {func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.Frozen[0] = []span{{20 * ms, 500 * ms}}
			h.held(1, "k", 2, 20, 300, 310, 320)
			h.add(0, evLost, 501, Event{N: n, R: "connection"})
		}, []string{"two holders"}},
		"cut off only later": {func(h *told) {
			h.Cut = map[int][]int64{0: {500 * ms}}
			h.add(0, evLost, 510, Event{N: h.got(0, "k", 1, 0, 10, 1000), R: "connection"})
			h.add(0, evState, 490, Event{N: 1, U: 1000 * ms})
			h.held(1, "k", 2, 20, 300, 310, 320)
		}, []string{"two holders"}},
		"killed only later": {func(h *told) {
			h.got(0, "k", 1, 0, 10, 1000)
			h.Killed[0] = 500 * ms
			h.held(1, "k", 2, 20, 300, 310, 320)
		}, []string{"two holders"}},
		"lost while the other holds": {func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.add(0, evState, 102, Event{N: n, U: 1000 * ms})
			h.held(3, "k", 2, 20, 100, 110, 120)
			h.add(0, evLost, 103, Event{N: n, R: "gone"})
			h.add(0, evGive, 104, Event{N: n})
			h.add(0, evGave, 105, Event{N: n, R: "gone"})
		}, []string{"model", "two holders"}},
		"before the store forgot": {func(h *told) {
			h.Forgets = []forget{{span: span{500 * ms, 600 * ms}}}
			h.held(0, "k", 1, 0, 10, 200, 210)
			h.held(1, "k", 2, 0, 100, 300, 310)
		}, []string{"two holders"}},
		"after the store forgot": {func(h *told) {
			h.Forgets = []forget{{span: span{500 * ms, 600 * ms}}}
			h.held(0, "k", 1, 700, 710, 900, 910)
			h.held(1, "k", 2, 700, 800, 1000, 1010)
		}, []string{"two holders"}},
		"a fence that falls": {func(h *told) {
			h.held(0, "k", 5, 0, 10, 20, 30)
			h.held(1, "k", 4, 40, 50, 60, 70)
		}, []string{"fence order"}},
		"a fence that falls for who had asked before": {func(h *told) {
			h.held(0, "k", 5, 0, 10, 20, 30)
			h.held(1, "k", 4, 0, 50, 60, 70)
		}, []string{"fence order"}},
		"the same fence twice": {func(h *told) {
			h.held(0, "k", 5, 0, 10, 20, 30)
			h.held(1, "k", 5, 40, 50, 60, 70)
		}, []string{"fence order"}},
		"a handoff with the same fence": {func(h *told) {
			h.held(0, "k", 5, 0, 10, 20, 30)
			h.held(3, "k", 5, 0, 50, 60, 70)
		}, []string{"fence order", "model"}},
		"a reader with its writer's fence": {func(h *told) {
			h.held(0, "k", 5, 0, 10, 20, 30)
			h.gave(1, h.grant(1, "k", Event{M: shared}, 5, 0, 50, 1000), 60, 70)
		}, []string{"fence order"}},
		"a fence that falls when the store has forgotten": {func(h *told) {
			h.Forgets = []forget{{span: span{35 * ms, 36 * ms}}}
			h.held(0, "k", 5, 0, 10, 20, 30)
			h.held(1, "k", 4, 40, 50, 60, 70)
		}, []string{"fence order"}},
		"no fence": {func(h *told) { h.held(0, "k", 0, 0, 10, 20, 30) }, []string{"fence", "model"}},
		"a re-entry that raises the fence": {func(h *told) {
			n := h.got(0, "k", 7, 0, 10, 1000)
			h.gave(0, h.grant(0, "k", Event{Of: n}, 8, 20, 30, 1000), 40, 45)
			h.gave(0, n, 50, 60)
		}, []string{"model", "re-entry"}},
		"given away at the inner release": {func(h *told) {
			n := h.got(0, "k", 7, 0, 10, 1000)
			again := h.grant(0, "k", Event{Of: n}, 7, 20, 30, 1000)
			h.gave(0, again, 40, 45)
			h.held(3, "k", 8, 15, 47, 48, 49)
			h.gave(0, n, 50, 60)
		}, []string{"model", "two holders"}},
		"a release that ends nothing": {func(h *told) {
			h.held(0, "k", 7, 0, 10, 20, 30)
			h.n++
			h.add(3, evAsk, 40, Event{N: h.n, K: "k", O: 1, Wait: 10})
		}, []string{"wait"}},
		"a release without an answer": {func(h *told) {
			h.add(0, evGive, 20, Event{N: h.got(0, "k", 7, 0, 10, 1000)})
		}, []string{"wait"}},
		"a grant whose deadline was over when it was asked for": {func(h *told) {
			h.n++
			h.add(0, evAsk, 100, Event{N: h.n, K: "k", O: 1, Wait: 100})
			h.add(0, evGot, 110, Event{N: h.n, R: "ok", F: 1, D: 90 * ms})
		}, []string{"past deadline"}},
		"a wait far too long": {func(h *told) {
			h.n++
			h.add(0, evAsk, 10, Event{N: h.n, K: "k", O: 1, Wait: 100})
			h.add(0, evGot, 60_010, Event{N: h.n, R: "timeout"})
		}, []string{"wait"}},
	} {
		finds(t, name, c.tell, c.want...)
	}
}

// Overlaps at a time at which the store may forget a lock are counted.
func TestForgivenIsCounted(t *testing.T) {
	h := newTold()
	h.Forgets = []forget{{span: span{50 * ms, 150 * ms}}}
	h.held(0, "k", 1, 0, 10, 200, 210)
	h.held(1, "k", 3, 60, 70, 100, 110)
	if found, forgiven := h.Check(); len(found) > 0 || forgiven != 1 {
		t.Errorf("found %v, forgiven %d", found, forgiven)
	}
}

// The model decides a long history of one key at one daemon.
func TestModelDecidesLongHistories(t *testing.T) {
	h := newTold()
	at := int64(0)
	for i := range 2000 {
		at += 10
		n := h.got(i%4, "k", uint64(i+1), max(0, at-200), at, at+5)
		if i%10 > 0 { // every tenth hold ends by itself
			h.gave(i%4, n, at+3, at+8)
		}
	}
	h.Hosts = []int{0, 0, 0, 0}
	if found := h.checks(t); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

func TestRegister(t *testing.T) {
	for _, c := range []struct{ name, says, finds string }{
		{"in turn", "fr k 1 a|ok 0 fw k 1 a 1|ok fr k 2 b|ok 1 fw k 2 b 2|ok", ""},
		{"a smaller fence", "fr k 2 b|ok 0 fr k 1 a|no fw k 1 a 1|no fw k 2 b 1|ok", ""},
		{"one fence of two", "fr k 2 a|ok 0 fr k 2 b|ok 0", "fence twice"},
		{"a lost write", "fr k 2 a|ok 0 fr k 2 b|ok 0 fw k 2 a 1|ok fw k 2 b 1|ok",
			"fence twice, lost write"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Register{cells: map[string]*register{}}
			rest := c.says
			for rest != "" {
				ask, more, _ := strings.Cut(rest, "|")
				answer := "ok"
				if strings.HasPrefix(more, "no") {
					answer = "no"
				} else if strings.HasPrefix(ask, "fr") {
					answer = more[:4]
				}
				if got := r.answer(ask); got != answer {
					t.Errorf("%s: %q, want %q", ask, got, answer)
				}
				rest = strings.TrimPrefix(strings.TrimPrefix(more, answer), " ")
			}
			_, found := r.Check(unforgiving)
			var names []string
			for _, v := range found {
				names = append(names, v.Check)
			}
			slices.Sort(names)
			if got := strings.Join(slices.Compact(names), ", "); got != c.finds {
				t.Errorf("found %q, want %q", got, c.finds)
			}
		})
	}
}

// A write without a fence that is overwritten is counted. It is no violation.
func TestUnfencedLossesAreCounted(t *testing.T) {
	r := &Register{cells: map[string]*register{}}
	for _, ask := range []string{"ur k", "ur k", "uw k 1", "uw k 1", "ur k", "uw k 2"} {
		r.answer(ask)
	}
	if g, found := r.Check(unforgiving); len(found) > 0 || g.Plain != 3 || g.PlainLost != 1 {
		t.Errorf("%+v, found %v", g, found)
	}
}

func TestCellsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cells() {
		if got, err := ParseCell(fmt.Sprint(c)); err != nil || got != c || seen[c.String()] {
			t.Errorf("%v: %v, %v", c, got, err)
		}
		seen[c.String()] = true
	}
	for _, bad := range []string{"", "redis/reset/daemon", "redis/reset/daemon/x",
		"redis/clock/store/1.5", "nothing/reset/daemon/1"} {
		if _, err := ParseCell(bad); err == nil {
			t.Errorf("%q is a cell", bad)
		}
	}
}

func unforgiving(string, string) bool { return false }

// Redis was flushed between two grants with the same fence. Only an acquire that had been requested
// before the other one was granted is forgiven.
func TestAFenceOfTwoAfterAFlush(t *testing.T) {
	for _, c := range []struct {
		flushed, asked int64
		finds          string
	}{{15, 5, ""}, {15, 14, "fence twice"}, {0, 5, "fence twice"}} {
		h := newTold()
		if c.flushed > 0 {
			h.Forgets = []forget{{span: span{c.flushed * ms, c.flushed * ms}}}
		}
		h.held(0, "k", 2, 0, 10, 12, 13)
		h.held(1, "k", 2, c.asked, 50, 60, 70)
		r := &Register{cells: map[string]*register{}}
		for _, ask := range []string{"fr k 2 0/1", "fr k 2 1/2"} {
			r.answer(ask)
		}
		_, found := r.Check(h.forgivesShared())
		var names []string
		for _, v := range found {
			names = append(names, v.Check)
		}
		if got := strings.Join(names, ", "); got != c.finds {
			t.Errorf("flushed at %d, asked at %d: %q, want %q", c.flushed, c.asked, got, c.finds)
		}
	}
}
