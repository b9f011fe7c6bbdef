package daemon_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The dashboard, the alerts and the runbook ask for metrics, labels' values and all, that there
// are.
func TestDashboardAndAlertsNameMetricsThatExist(t *testing.T) {
	h := start(t, nil, nil)
	all := h.metrics()
	values := make(map[string]map[string]bool) // by metric and label
	for name, f := range all {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				k := name + " " + l.GetName()
				if values[k] == nil {
					values[k] = make(map[string]bool)
				}
				values[k][l.GetValue()] = true
			}
		}
	}
	names := regexp.MustCompile(`locksidecar_[a-z0-9_]+(?:\{[^}]*\})?`)
	label := regexp.MustCompile(`(result|reason|cause|code|lane)\s*(=~|!~|!=|=)\s*\\?"([^"\\]*)\\?"`)
	of := "locksidecar_upstream_connections" // which the embedded store does not have
	seen := 0
	for _, glob := range []string{"../deploy/grafana/*.json", "../deploy/prometheus/*.rules.yaml",
		"../docs/operate/[^s]*.md", "../docs/operate/s[ei]*.md"} {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", glob, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range names.FindAllString(string(b), -1) {
				name, match, _ := strings.Cut(text, "{")
				if all[name] == nil {
					for _, suffix := range []string{"_bucket", "_sum", "_count"} {
						name = strings.TrimSuffix(name, suffix)
					}
				}
				if all[name] == nil && name != of {
					t.Errorf("%s: there is no metric %s", file, text)
					continue
				}
				seen++
				for _, l := range label.FindAllStringSubmatch(match, -1) {
					for v := range strings.SplitSeq(l[3], "|") {
						if have := values[name+" "+l[1]]; !have[v] && !strings.HasPrefix(v, "$") && v != "" &&
							!strings.ContainsAny(v, ".*") {
							t.Errorf("%s: %s is never %q in %s", file, l[1], v, name)
						}
					}
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d metrics are asked for", seen)
	}
}
