package harness

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func plotted() (*Report, Plot) {
	r := &Report{Machine: Machine{CPU: "a <CPU>"}}
	for _, v := range []float64{90_000, 110_000, 100_000} {
		r.Add("some keys", "ours & others", Metrics{"ops_s": v, "p50_us": 20, "p99_us": 700,
			"p999_us": 90_000})
		r.Add("some keys", "theirs", Metrics{"ops_s": v / 4})
		r.Add("some keys", "left out", Metrics{"ops_s": v * 9})
	}
	r.Add("elsewhere", "theirs", Metrics{"ops_s": 1})
	p := Plot{Scene: "some keys", Title: "Some keys", Rate: "ops_s", RateName: "pairs a second",
		TimesName: "pairs", Ours: []string{"ours & others"}, Leave: []string{"left out"}}
	r.Draw(p)
	return r, p
}

func TestPictureHasItsRowsAndIsXML(t *testing.T) {
	r, p := plotted()
	svg := r.SVG(p)
	d, texts := xml.NewDecoder(strings.NewReader(svg)), []string{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if s, ok := token.(xml.CharData); ok {
			texts = append(texts, string(s))
		}
	}
	for _, want := range []string{"Some keys", "ours & others", "theirs", "100,000", "25,000",
		"10µs", "100ms"} {
		if !slices.Contains(texts, want) {
			t.Errorf("%q is not in the picture: %q", want, texts)
		}
	}
	if slices.Contains(texts, "left out") || strings.Contains(svg, "NaN") ||
		strings.Contains(svg, "Inf") {
		t.Errorf("what should not be there is:\n%s", svg)
	}
	if n := strings.Count(svg, `<rect x=`); n != 2 {
		t.Errorf("%d bars of 2", n)
	}
}

func TestPicturesStandBesideTheResultsThatShowThem(t *testing.T) {
	r, _ := plotted()
	dir := t.TempDir()
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "some-keys.svg")); err != nil {
		t.Error(err)
	}
	if md := r.Markdown(); strings.Count(md, "![Some keys](some-keys.svg)") != 1 {
		t.Error(md)
	}
}

func TestScalesHoldAllThatIsDrawn(t *testing.T) {
	for _, most := range []float64{0, 0.4, 1, 3, 7, 19_999, 50_000, 123_456} {
		s := rateScale([]bar{{rate: Spread{Max: most}}})
		if at := s.at(most); at > rateRight || len(s.ticks) < 2 || len(s.ticks) > 6 {
			t.Errorf("%v is at %v, with ticks %v", most, at, s.ticks)
		}
	}
	for _, us := range []float64{0, 1, 9.9, 10, 2_500_000} {
		s := timesScale([]bar{{times: []Spread{{Median: us}}}})
		if at := s.at(max(us, 1)); at < timesLeft || at > timesRight+1e-6 {
			t.Errorf("%v µs are at %v", us, at)
		}
	}
}

func TestBestIsPickedRoundByRound(t *testing.T) {
	r := &Report{}
	for i, v := range []float64{3, 1, 5} {
		r.Add("s", "a", Metrics{"x": v})
		r.Add("s", "b", Metrics{"x": []float64{2, 4, 5}[i]})
	}
	if got := r.Best("s", []string{"a", "b", "nobody"}, "x", math.Max); !slices.Equal(got,
		[]float64{3, 4, 5}) {
		t.Errorf("the largest are %v", got)
	}
	if got := Quotients(r.Best("s", []string{"a", "b"}, "x", math.Min),
		[]float64{2, 0, 5}); !slices.Equal(got, []float64{1, 1}) {
		t.Errorf("the quotients are %v", got)
	}
}
