package conformance

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// checklist reads the tables of PROTOCOL.md, section 16, and returns the scenarios of each point.
// before is the text of the other sections.
func checklist(t *testing.T) (points map[string][]string, before string) {
	b, err := os.ReadFile("../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	before, section, ok := strings.Cut(string(b), "\n## 16 Checklist\n")
	if !ok {
		t.Fatal("PROTOCOL.md has no checklist")
	}
	points = map[string][]string{}
	name := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(section) {
		col := strings.Split(line, "|")
		if len(col) != 6 || !regexp.MustCompile(`^ [MS]\d+ $`).MatchString(col[1]) {
			continue
		}
		no := strings.TrimSpace(col[1])
		if points[no] != nil {
			t.Errorf("PROTOCOL.md has the point %s twice", no)
		}
		points[no] = []string{}
		for _, m := range name.FindAllStringSubmatch(col[4], -1) {
			points[no] = append(points[no], m[1])
		}
	}
	return points, before
}

// TestChecklist compares the checklist of PROTOCOL.md with the text, the scenarios and the faults.
func TestChecklist(t *testing.T) {
	t.Parallel()
	points, text := checklist(t)
	var tested []string
	for no, scenarios := range points {
		if len(scenarios) == 0 {
			t.Errorf("%s names no scenario", no)
		}
		tested = append(tested, scenarios...)
		for _, s := range scenarios {
			if !slices.ContainsFunc(All(), func(x Scenario) bool { return x.Name == s }) {
				t.Errorf("%s names the scenario %s, which does not exist", no, s)
			}
		}
		broken := false
		for _, f := range faults {
			if !slices.Contains(strings.Fields(f.points), no) {
				continue
			}
			broken = true
			finds := func(s string) bool { return slices.Contains(scenarios, s) }
			if !slices.ContainsFunc(strings.Fields(f.scenarios), finds) {
				t.Errorf("the fault %s breaks %s, but none of the point's scenarios (%s) finds it",
					f.name, no, strings.Join(scenarios, ", "))
			}
		}
		if !broken {
			t.Errorf("no fault breaks %s", no)
		}
	}
	for _, f := range faults {
		for p := range strings.FieldsSeq(f.points) {
			if points[p] == nil {
				t.Errorf("the fault %s breaks %s, which the checklist does not have", f.name, p)
			}
		}
	}
	for _, s := range All() {
		if !slices.Contains(tested, s.Name) {
			t.Errorf("no point of the checklist names the scenario %s", s.Name)
		}
	}
	checkMarks(t, points, text)
}

// checkMarks checks that each sentence with MUST has the mark of a point, that all marks name a
// point, and that each point is marked.
func checkMarks(t *testing.T, points map[string][]string, text string) {
	mark := regexp.MustCompile(`\b[MS]\d+\b`)
	end := regexp.MustCompile(`[.?!]\s+`)
	_, text, _ = strings.Cut(text, "\n## 2 ")
	text, _, _ = strings.Cut(text, "\n## 14 ")
	marked := map[string]bool{}
	for _, paragraph := range regexp.MustCompile(`\n\n|\n- |\n\|`).Split(text, -1) {
		for _, sentence := range end.Split(paragraph, -1) {
			found := mark.FindAllString(sentence, -1)
			if strings.Contains(sentence, "MUST") && len(found) == 0 {
				t.Errorf("PROTOCOL.md has a MUST without a mark:\n%s", sentence)
			}
			for _, m := range found {
				if marked[m] = true; points[m] == nil {
					t.Errorf("PROTOCOL.md names %s, which the checklist does not have", m)
				}
			}
		}
	}
	for no := range points {
		if !marked[no] {
			t.Errorf("no sentence of PROTOCOL.md, sections 2 to 13, has the mark %s", no)
		}
	}
}
