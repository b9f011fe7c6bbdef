package chaos

import (
	"testing"
)

// permit adds a grant of one of two permits.
func (h *told) permit(w int, key string, fence uint64, asked, at, until int64) (n int64) {
	return h.grant(w, key, Event{M: 2, P: 2}, fence, asked, at, until)
}

// lowered adds a downgrade of the grant with that fence.
func (h *told) lowered(w int, n int64, fence uint64, at, answered int64) {
	h.add(w, evLower, at, Event{N: n})
	h.add(w, evLow, answered, Event{N: n, R: "ok", F: fence})
}

// several adds one acquire of several keys, with the result of each.
func (h *told) several(w int, asked, at int64, results map[string]string) {
	first := h.n + 1
	for _, key := range []string{"a", "b", "c"} {
		h.n++
		h.add(w, evAsk, asked, Event{N: h.n, K: key, O: 1, G: first})
		e := Event{N: h.n, R: results[key]}
		if e.R == "ok" {
			e.F, e.U = uint64(h.n), (at+1000)*ms
		}
		h.add(w, evGot, at, e)
	}
}

func TestSoundHistoriesOfOtherTerms(t *testing.T) {
	const shared = 1
	for name, tell := range map[string]func(h *told){
		"two of two permits": func(h *told) {
			a := h.permit(0, "k", 1, 0, 10, 1000)
			b := h.permit(1, "k", 2, 0, 20, 1000)
			h.gave(0, a, 100, 110)
			c := h.permit(3, "k", 3, 30, 105, 1000)
			h.gave(1, b, 150, 160)
			h.gave(3, c, 170, 180)
		},
		"permits whose fences are in no order": func(h *told) {
			h.gave(0, h.permit(0, "k", 9, 0, 10, 1000), 20, 30)
			h.gave(3, h.permit(3, "k", 4, 40, 50, 1000), 60, 70)
		},
		"both permits of one owner": func(h *told) {
			a, b := h.permit(0, "k", 1, 0, 10, 1000), h.permit(0, "k", 2, 20, 30, 1000)
			h.gave(0, a, 40, 50)
			h.gave(0, b, 60, 70)
		},
		"a permit beside the lock of the same key": func(h *told) {
			h.permit(0, "k", 1, 0, 10, 1000)
			h.held(1, "k", 2, 0, 20, 100, 110)
			h.held(3, "k", 3, 0, 120, 130, 140)
		},
		"a permit that has run out": func(h *told) {
			h.permit(0, "k", 1, 0, 10, 100)
			h.permit(3, "k", 2, 0, 20, 1000)
			h.permit(3, "k", 3, 30, 120, 1000)
		},
		"permits of a store that forgot": func(h *told) {
			h.Forgets = []forget{{span: span{50 * ms, 150 * ms}}}
			a, b := h.permit(0, "k", 1, 0, 10, 1000), h.permit(3, "k", 2, 0, 20, 1000)
			c, d := h.permit(0, "k", 3, 55, 60, 1000), h.permit(3, "k", 4, 55, 60, 1000)
			for i, n := range []int64{a, b, c, d} {
				h.gave(i%2*3, n, 100, 110)
			}
		},
		"a reader beside who has come down": func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.lowered(0, n, 1, 50, 60)
			for w := range 3 {
				h.gave(w+1, h.grant(w+1, "k", Event{M: shared}, 2, 20, 55, 1000), 70, 80)
			}
			h.gave(0, n, 100, 110)
			h.held(3, "k", 3, 90, 105, 120, 130)
		},
		"lost after a downgrade": func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.lowered(0, n, 1, 50, 60)
			r := h.grant(3, "k", Event{M: shared}, 2, 20, 55, 1000)
			h.add(0, evState, 80, Event{N: n, U: 1000 * ms})
			h.add(0, evLost, 91, Event{N: n, R: "gone"})
			h.gave(3, r, 85, 90)
			h.held(3, "k", 3, 86, 95, 100, 110)
		},
		"a downgrade that came too late": func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 100)
			h.add(0, evLower, 150, Event{N: n})
			h.add(0, evLow, 160, Event{N: n, R: "not_held"})
			h.held(3, "k", 2, 90, 120, 170, 180)
		},
		"several, or none": func(h *told) {
			h.several(0, 0, 10, map[string]string{"a": "ok", "b": "ok", "c": "ok"})
			h.several(1, 0, 10, map[string]string{"a": "busy", "b": "busy", "c": "busy"})
		},
		"back at once, beside an answer that is on its way": func(h *told) {
			h.n++
			h.add(0, evAsk, 0, Event{N: h.n, K: "k", O: 1})
			h.add(0, evGot, 100, Event{N: h.n, R: "silence"})
			h.n++
			h.add(0, evAsk, 110, Event{N: h.n, K: "k", O: 1})
			h.add(0, evGot, 120, Event{N: h.n, R: "ok", F: 1, U: 1000 * ms, C: 2})
		},
	} {
		finds(t, name, tell)
	}
}

func TestViolationsOfOtherTermsAreFound(t *testing.T) {
	const shared = 1
	for name, c := range map[string]struct {
		tell func(h *told)
		want []string
	}{
		"three of two permits, on three hosts": {func(h *told) {
			for w := range 3 {
				h.gave(w, h.permit(w, "k", uint64(w+1), 0, 10, 1000), 100, 110)
			}
		}, []string{"too many permits"}},
		"three of two permits, on one host": {func(h *told) {
			for i := range 3 {
				h.gave(i%2*3, h.permit(i%2*3, "k", uint64(i+1), 0, 10, 1000), 100, 110)
			}
		}, []string{"model", "too many permits"}},
		"a permit before another's validity is over": {func(h *told) {
			h.permit(0, "k", 1, 0, 10, 1000)
			h.permit(1, "k", 2, 0, 10, 1000)
			h.gave(2, h.permit(2, "k", 3, 20, 900, 2000), 950, 960)
		}, []string{"too many permits"}},
		"three of two permits after the store forgot": {func(h *told) {
			h.Forgets = []forget{{span: span{500 * ms, 600 * ms}}}
			for w := range 3 {
				h.gave(w, h.permit(w, "k", uint64(w+1), 700, 710, 2000), 800, 810)
			}
		}, []string{"too many permits"}},
		"a permit given twice": {func(h *told) {
			h.gave(0, h.permit(0, "k", 5, 0, 10, 1000), 20, 30)
			h.gave(1, h.permit(1, "k", 5, 40, 50, 1000), 60, 70)
		}, []string{"permits alike"}},
		"a permit with a lock's fence": {func(h *told) {
			h.held(0, "k", 5, 0, 10, 20, 30)
			h.gave(1, h.permit(1, "k", 5, 40, 50, 1000), 60, 70)
		}, []string{"permits alike"}},
		"a permit without a fence": {func(h *told) {
			h.gave(0, h.permit(0, "k", 0, 0, 10, 1000), 20, 30)
		}, []string{"fence"}},
		"a release of no permit": {func(h *told) {
			n := h.permit(0, "k", 1, 0, 10, 1000)
			h.gave(0, n, 20, 30)
			h.n++
			h.add(0, evAsk, 40, Event{N: h.n, K: "k", O: 1, M: 2, P: 2})
		}, []string{"wait"}},
		"a writer beside who has come down": {func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.lowered(0, n, 1, 50, 60)
			h.held(3, "k", 2, 20, 70, 80, 90)
			h.gave(0, n, 100, 110)
		}, []string{"model", "two holders"}},
		"a reader beside who is still to come down": {func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.gave(3, h.grant(3, "k", Event{M: shared}, 2, 20, 30, 1000), 70, 80)
			h.lowered(0, n, 1, 50, 60)
			h.gave(0, n, 100, 110)
		}, []string{"model", "two holders"}},
		"a reader with the fence of who has come down": {func(h *told) {
			n := h.got(0, "k", 5, 0, 10, 1000)
			h.lowered(0, n, 5, 50, 60)
			h.gave(3, h.grant(3, "k", Event{M: shared}, 5, 20, 55, 1000), 70, 80)
			h.gave(0, n, 100, 110)
		}, []string{"fence order", "model"}},
		"a downgrade that raises the fence": {func(h *told) {
			n := h.got(0, "k", 5, 0, 10, 1000)
			h.lowered(0, n, 6, 50, 60)
			h.gave(0, n, 100, 110)
		}, []string{"downgrade"}},
		"a downgrade without an answer": {func(h *told) {
			h.add(0, evLower, 20, Event{N: h.got(0, "k", 7, 0, 10, 1000)})
		}, []string{"wait"}},
		"a downgrade that gives away": {func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.lowered(0, n, 1, 50, 60)
			h.held(1, "k", 2, 20, 70, 80, 90)
			h.gave(0, n, 100, 110)
		}, []string{"two holders"}},
		"back up from a downgrade": {func(h *told) {
			n := h.got(0, "k", 1, 0, 10, 1000)
			h.lowered(0, n, 1, 50, 60)
			h.gave(0, h.grant(0, "k", Event{Of: n}, 1, 70, 80, 1000), 85, 90)
			h.gave(0, n, 100, 110)
		}, []string{"model", "upgrade"}},
		"some of several": {func(h *told) {
			h.several(0, 0, 10, map[string]string{"a": "ok", "b": "busy", "c": "ok"})
		}, []string{"all or nothing"}},
		"some of several kept": {func(h *told) {
			h.several(0, 0, 10, map[string]string{"a": "busy", "b": "busy", "c": "busy"})
			h.n++
			h.add(0, evAsk, 110, Event{N: h.n, K: "b", O: 1})
			h.add(0, evGot, 120, Event{N: h.n, R: "ok", F: 9, U: 1000 * ms, C: 2})
		}, []string{"left behind"}},
		"one of several that another holds": {func(h *told) {
			h.held(1, "b", 1, 0, 10, 200, 210)
			h.several(0, 20, 30, map[string]string{"a": "ok", "b": "ok", "c": "ok"})
		}, []string{"two holders"}},
		"what cannot be": {func(h *told) {
			h.n++
			h.add(0, evAsk, 10, Event{N: h.n, K: "k", O: 1, M: 2, P: 2})
			h.add(0, evGot, 20, Event{N: h.n, R: "unsupported"})
		}, []string{"refused"}},
	} {
		finds(t, name, c.tell, c.want...)
	}
}

// If there are too many holders at a time at which the store may forget permits, they are counted.
func TestForgivenPermitsAreCounted(t *testing.T) {
	h := newTold()
	h.Forgets = []forget{{span: span{50 * ms, 150 * ms}}}
	h.permit(0, "k", 1, 0, 10, 1000)
	h.permit(1, "k", 2, 0, 20, 1000)
	h.gave(2, h.permit(2, "k", 3, 60, 70, 1000), 100, 110)
	if found, forgiven := h.Check(); len(found) > 0 || forgiven != 1 {
		t.Errorf("found %v, forgiven %d", found, forgiven)
	}
}
