package terminal

import (
	"strings"
	"testing"
)

func TestCleanTextDoesNothing(t *testing.T) {
	for s, want := range map[string]string{
		"order:42":              "order:42",
		"größe 漢字 é":            "größe 漢字 é",
		"a\x1b[31mb":            "a\ufffd[31mb",
		"a\nb\tc\rd\x00e\x7ff":  "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf",
		"a\u009b31mb\u0085":     "a\ufffd31mb\ufffd",
		"a\u202egpj.exe\u2066b": "a\ufffdgpj.exe\ufffdb",
		"a\u200bb\u00adc":       "a\ufffdb\ufffdc",
		"\u2764\ufe0f":          "\u2764",
		"not UTF-8 \xff\xc3":    "not UTF-8 \ufffd\ufffd",
		"\ue000\U000e0041":      "\ufffd\ufffd",
	} {
		if got := Clean(s); got != want {
			t.Errorf("Clean(%q) = %q, want %q", s, got, want)
		}
	}
}

func TestTextFitsItsColumns(t *testing.T) {
	for _, c := range []struct {
		s    string
		w    int
		want string
	}{
		{"abc", 5, "abc  "}, {"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"abcd", 1, "…"}, {"abcd", 0, ""},
		{"漢字", 4, "漢字"}, {"漢字字", 5, "漢字…"}, {"漢字字", 4, "漢… "},
		{"e\u0301tude", 3, "e\u0301t…"}, {"", 2, "  "},
	} {
		if got := Fit(c.s, c.w); got != c.want || Width(got) != c.w {
			t.Errorf("Fit(%q, %d) = %q of %d columns, want %q", c.s, c.w, got, Width(got), c.want)
		}
	}
	if got := FitRight("12", 4); got != "  12" {
		t.Errorf("FitRight: %q", got)
	}
}

func FuzzFit(f *testing.F) {
	f.Add("a漢\x1b[2Jé\u0301", 3)
	f.Fuzz(func(t *testing.T, s string, w int) {
		w = min(max(w, 0), 200)
		got := Fit(Clean(s), w)
		if Width(got) != w {
			t.Errorf("%q has %d columns, want %d", got, Width(got), w)
		}
		if strings.ContainsFunc(got, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q has a control character", got)
		}
	})
}
