package chaos

import (
	"testing"
	"time"
)

func TestAStandstillMakesNobodyLate(t *testing.T) {
	w := &watch{}
	second := int64(time.Second)
	w.tick(10*second, 10*second+int64(watchTick))
	w.tick(11*second, 74*second)
	if got := w.ran(); got > 4*watchTick {
		t.Errorf("a standstill of 63 s counts as %v of patience", got)
	}
	if len(w.found) != 1 || w.found[0].String() != "the machine stood still for 63.0 s" {
		t.Errorf("found %v", w.found)
	}
}

func TestAStandstillExcusesOnlyWhatWaits(t *testing.T) {
	stood := []standstill{{span: span{0, 3_200_000_000}}}
	wait, crash := Violation{"wait", "no answer"}, Violation{"crash", "a panic"}
	known, unknown := Violation{"log", unexplained + " in log1"},
		Violation{"log", "a message that the source does not have"}
	for _, c := range []struct {
		name  string
		found []standstill
		vs    []Violation
		want  string
	}{
		{"a wait", stood, []Violation{wait, known}, "the machine stood still for 3.2 s"},
		{"a wait without a standstill", nil, []Violation{wait}, ""},
		{"a crash beside a wait", stood, []Violation{wait, crash}, ""},
		{"an unknown line", stood, []Violation{unknown}, ""},
		{"a clock", []standstill{{span{0, 1}, -2 * time.Second}}, []Violation{wait},
			"the wall clock was moved by -2s"},
	} {
		if got := discards(c.found, c.vs); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestTheWatchTicks(t *testing.T) {
	w := newWatch()
	if !w.patient(time.Hour, func() bool { return w.ran() > 3*watchTick }) {
		t.Error("no time passes")
	}
	w.end()
}
