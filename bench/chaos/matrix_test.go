package chaos

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestResultsOfSeveralRunsComeTogether(t *testing.T) {
	cells := Cells()
	first := []Result{
		{Cell: cells[0], Seed: 1, Fired: 2, Outcome: Outcome{Operations: 10,
			Guarded: Guarded{Plain: 40, PlainLost: 1}, Recovery: time.Second}},
		{Cell: cells[1], Seed: 2, Fired: 3, Outcome: Outcome{Operations: 5,
			Violations: []Violation{{Check: "fence", Text: "none"}}}},
	}
	second := []Result{{Cell: cells[0], Seed: 3, Fired: 1,
		Outcome: Outcome{Operations: 7, Recovery: 2 * time.Second}}, {Cell: cells[2], Skipped: "no root"}}
	var b bytes.Buffer
	if err := WriteJSON(&b, first); err != nil {
		t.Fatal(err)
	}
	read, err := ReadJSON(&b)
	if err != nil || !reflect.DeepEqual(read, first) {
		t.Fatalf("%v, read %+v, want %+v", err, read, first)
	}
	all := append(read, second...)

	parts := NewFirst(cells[:5], all)
	if len(parts) != 2 || !reflect.DeepEqual(parts, [][]Cell{cells[3:5], cells[:3]}) {
		t.Errorf("the order is %v", parts)
	}
	if parts := NewFirst(cells[:2], all); len(parts) != 1 {
		t.Errorf("with nothing new the order is %v", parts)
	}

	WriteSummary(&b, all)
	lines := strings.Split(b.String(), "\n")
	if last := lines[len(lines)-3]; !strings.HasPrefix(last, "| all | 2 of ") ||
		!strings.HasSuffix(last, " | 3 | 22 | 6 | 1 | 0 | 0 | 2.50 % | 2.0 s |") {
		t.Errorf("in all %q", last)
	}
}
