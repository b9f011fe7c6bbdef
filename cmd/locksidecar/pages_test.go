package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/protocol"
)

// The pages for operators name only what exists. Each word in code style is a field, a command, an
// event, a code or the like, or one of the names of other programs below.
// (TestDashboardAndAlertsNameMetricsThatExist, in package daemon, checks metrics.)
func TestPagesNameWhatThereIs(t *testing.T) {
	known := knownWords(t)
	alerts := slurp(t, "deploy/prometheus/locksidecar.rules.yaml")
	span := regexp.MustCompile("`([^`\n]+)`")
	seen := 0
	for _, page := range []string{"failures", "runbook", "security", "sizing", "monitoring",
		"configure", "upgrade"} {
		page = "docs/operate/" + page + ".md"
		text := slurp(t, page)
		for _, name := range regexp.MustCompile(`\bLocksidecar[A-Z]\w+`).FindAllString(text, -1) {
			if !strings.Contains(alerts, "- alert: "+name+"\n") {
				t.Errorf("%s: there is no alert %s", page, name)
			}
		}
		for _, m := range span.FindAllStringSubmatch(text, -1) {
			seen++
			switch s := m[1]; {
			case strings.HasPrefix(s, "locksidecar_"), known[s]:
			case strings.HasPrefix(s, "locksidecar "):
				checkCommand(t, page, strings.Fields(s)[1:])
			case strings.HasPrefix(s, "make "):
				if !strings.Contains(slurp(t, "Makefile"), "\n"+strings.Fields(s)[1]+":") {
					t.Errorf("%s: there is no %s", page, s)
				}
			case strings.HasSuffix(s, "=") && !slices.Contains(adminsOwn, s):
				if !strings.Contains(slurp(t, "deploy/systemd/locksidecar.service")+slurp(t,
					"deploy/systemd/locksidecar.socket"), "\n"+s) {
					t.Errorf("%s: our units do not have %s", page, s)
				}
			case !slices.Contains(adminsOwn, s):
				t.Errorf("%s: what is %s?", page, s)
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d names are checked", seen)
	}
}

// adminsOwn has names that this test does not check: words of other programs, and examples.
var adminsOwn = []string{"systemctl status", "systemctl stop", "systemctl reload",
	"systemd-analyze security", "CPUQuota=", "MemoryMax=",
	// These are labels of metrics, and names in clients.
	"instance", "namespace", "result", "renewals", "event", "lock_many", "acquire", "-w",
	"systemctl status locksidecar", "journalctl -u locksidecar",
	"curl --unix-socket /run/locksidecar/locksidecar.sock.admin http://localhost/readyz",
	"go version -m locksidecar", "go.mod", "go.sum", "SHA256SUMS", ".admin", "tls=true",
	"http://127.0.0.1:9402/", "ssh -L 9402:127.0.0.1:9402 HOST", "kubectl port-forward",
	"honor_labels: true", "rule_files",
	"classes", "log.audit: true", "OTEL_EXPORTER_OTLP_ENDPOINT", "TRACEPARENT", "--max-wait", "limits",
	"systemctl restart", "noeviction", "-only SCENE", "--watch", "--config"}

// knownWords returns the fields, codes, events, paths and other names of the program.
func knownWords(t *testing.T) map[string]bool {
	// These are reasons that only clients use.
	known := map[string]bool{"connection": true, "silence": true}
	add := func(pattern, text string) {
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
		if len(found) == 0 {
			t.Fatalf("no source matches %s", pattern)
		}
		for _, m := range found {
			known[m[1]] = true
		}
	}
	for i := range 256 {
		known[protocol.Code(i).String()], known[protocol.Reason(i).String()] = true, true
	}
	reference := slurp(t, "docs/reference/configuration.md")
	add(`(?m)^### (\S+)$`, reference)
	for path := range maps.Clone(known) {
		known["LOCKSIDECAR_"+strings.ToUpper(strings.ReplaceAll(path, ".", "_"))] = true
	}
	add("(?m)^\\| `([a-z_]+)` \\|", reference)
	add("(?:;|\\|) `([a-z_.]+: [^`]+)`", reference)
	for _, example := range []string{"outage: local", "outage: fail", "log.keys: hashed", "ttl: 10m"} {
		known[example] = known[strings.SplitN(example, ":", 2)[0]]
	}
	var sources strings.Builder
	for _, dir := range []string{"daemon", "daemon/*", "upstream/*", "cmd/locksidecar",
		"cmd/locksidecar/internal/config"} {
		files, err := filepath.Glob(fromRoot(dir + "/*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") {
				sources.Write(b)
			}
		}
	}
	code := sources.String()
	add(`zap\.String\("event", "([a-z_]+)"\)`, code)
	add(`"event":"([a-z]+)","(?:wait|hold)_ms"`, code)
	add(`l\.session\(s, "([a-z_]+)"\)`, code)
	add(`HandleFunc\("GET (/[a-z]+)"`, code)
	add(`Handle\("GET (/[a-z.]+)"`, code)
	add(`"([a-z_]+)": +storeurl\.`, code)
	add(`"([a-z_]+)": +c\.WaitAOF`, code)
	add(`"(ca|cert|key)": +Text\(`, code)
	for _, scheme := range upstreams() {
		known[scheme] = true
	}
	return known
}

// checkCommand checks that the command and its flags exist.
func checkCommand(t *testing.T, page string, words []string) {
	t.Helper()
	root := newMain().root()
	cmd, rest, err := root.Find(words)
	if err != nil || cmd == root {
		t.Errorf("%s: there is no command locksidecar %s", page, strings.Join(words, " "))
		return
	}
	for _, w := range rest {
		if w == "--" {
			return
		}
		if strings.HasPrefix(w, "-") && !hasFlag(cmd, w) {
			t.Errorf("%s: %s has no flag %s", page, cmd.CommandPath(), w)
		}
	}
}

func hasFlag(cmd *cobra.Command, w string) bool {
	if name, long := strings.CutPrefix(w, "--"); long {
		return cmd.Flags().Lookup(name) != nil
	}
	return cmd.Flags().ShorthandLookup(w[1:]) != nil
}

// The index leads to every page.
func TestIndexHasEveryPage(t *testing.T) {
	index := slurp(t, "docs/README.md")
	for _, page := range append(documents(t, "docs/*.md"), documents(t, "docs/*/*.md")...) {
		if rest := strings.TrimPrefix(page, "docs/"); page != "docs/README.md" &&
			!strings.Contains(index, "("+rest+")") {
			t.Errorf("docs/README.md does not lead to %s", page)
		}
	}
}
