package conformance

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/protocol/conformance/faulty"
)

// The environment of the test program when it runs as the client.
const (
	asClient  = "LOCKSIDECAR_TEST_CLIENT" // "go" or "faulty"
	withFault = "LOCKSIDECAR_TEST_FAULT"
	sockVar   = "LOCKSIDECAR_SOCKET"
	testBound = 90 * time.Second

	noRaceSleep = "GORACE=atexit_sleep_ms=0" // otherwise each client takes a second to end
)

func TestMain(m *testing.M) {
	can := make([]string, len(Abilities))
	for i, a := range Abilities {
		can[i] = a[0]
	}
	switch os.Getenv(asClient) {
	case "go":
		runReference(os.Getenv(sockVar), slices.DeleteFunc(can, func(a string) bool {
			return a == "fork"
		}))
	case "faulty":
		faulty.Run(os.Getenv(sockVar), os.Getenv(withFault), can, os.Stdin, os.Stdout)
	default:
		goleak.VerifyTestMain(m)
	}
}

func self(t *testing.T) []string {
	exe, err := os.Executable()
	if err != nil {
		t.Error(err)
	}
	return []string{exe}
}

// passes checks that a client passes all scenarios. The client may skip the scenarios that need an
// ability of lacks.
func passes(t *testing.T, o Options, lacks ...string) {
	t.Helper()
	o.Timeout = testBound
	for _, s := range All() {
		o.Only = append(o.Only, s.Name)
	}
	rs, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range All() {
		r := rs[i]
		t.Logf("%-24s %-7s %5d ms", r.Name, r.Outcome, r.Millis)
		lacking := slices.ContainsFunc(s.Needs, func(n string) bool { return slices.Contains(lacks, n) })
		if r.Outcome != Passed && !(r.Outcome == Skipped && lacking) {
			t.Errorf("%s %s: %s\n%s", r.Name, r.Outcome, r.Why, strings.Join(r.Exchange, "\n"))
		}
	}
}

func TestGoClientPassesAll(t *testing.T) {
	t.Parallel()
	passes(t, Options{Command: self(t), Env: []string{asClient + "=go", noRaceSleep}}, "fork")
}

func TestFaultlessClientPassesAll(t *testing.T) {
	t.Parallel()
	passes(t, Options{Command: self(t), Env: []string{asClient + "=faulty", noRaceSleep}})
}

// TestRulesOfTheLines uses clients that break the rules for the lines between runner and client.
func TestRulesOfTheLines(t *testing.T) {
	t.Parallel()
	const ready = `echo '{"event":"ready","client":"sh","can":[]}'; `
	for _, c := range []struct {
		script, scenario string
		outcome          Outcome
		why              string
	}{
		{`echo hello; cat >/dev/null`, "hello", Failed, `printed "hello"`},
		{`exit 3`, "hello", Failed, "exit status 3"},
		{`echo '{"event":"ready","can":["flying"]}'; cat >/dev/null`, "hello", Failed,
			`"flying", which does not exist`},
		{ready + `cat >/dev/null`, "shared", Skipped, "does not declare [shared]"},
		{ready + `read l; echo '{"id":1}'; cat >/dev/null`, "hello", Failed,
			`either "ok":true or "error":NAME`},
		{ready + `read l; echo '{"id":7,"ok":true}'; cat >/dev/null`, "hello", Failed,
			"an answer to nothing that was asked"},
		{ready + `read l; echo '{"id":1,"ok":true}'; echo '{"id":1,"ok":true}'; cat >/dev/null`, "hello",
			Failed, "a second answer"},
		{ready + `read l; echo '{"ok":true}'; cat >/dev/null`, "hello", Failed,
			"neither an answer (id) nor an event"},
		{ready + `read l; echo '{"id":1,"ok":true}'; read l; echo '{"id":2,"ok":true}'; cat >/dev/null`,
			"hello", Failed, "has no fence"},
		{ready + `read l; echo '{"id":1,"ok":true}'; read l; echo '{"id":2,"ok":true,"fence":1.8e18}'; cat >/dev/null`, "hello", Failed, "not a whole number"},
		{ready + `read l; echo '{"id":1,"ok":true}'; read l; echo '{"id":2,"error":"denied"}'; cat >/dev/null`, "silence", Failed, "has not asked the daemon"},
	} {
		rs, err := Run(t.Context(), Options{Command: []string{"sh", "-c", c.script},
			Only: []string{c.scenario}, Timeout: testBound})
		if err != nil {
			t.Fatal(err)
		}
		if r := rs[0]; r.Outcome != c.outcome || !strings.Contains(r.Why, c.why) {
			t.Errorf("%s: %s: %s; expected is %q", c.script, r.Outcome, r.Why, c.why)
		}
	}
	if _, err := Run(t.Context(), Options{Command: []string{"sh"},
		Only: []string{"nothing"}}); err == nil {
		t.Error("a scenario that does not exist is run")
	}
	if _, err := Run(t.Context(), Options{Command: []string{"/no/such/program"}}); err == nil {
		t.Error("a program that does not exist is run")
	}
}

// TestDocumentListsEverything compares the tables of docs/contribute/client.md with the program.
func TestDocumentListsEverything(t *testing.T) {
	b, err := os.ReadFile("../../docs/contribute/client.md")
	if err != nil {
		t.Fatal(err)
	}
	line := func(format string, a ...any) {
		if want := fmt.Sprintf(format, a...); !strings.Contains(string(b), want) {
			t.Errorf("docs/contribute/client.md has no line %s", want)
		}
	}
	for _, s := range All() {
		line("| `%s` | %s | %s | %s |\n", s.Name, s.Section, strings.Join(s.Needs, ", "), s.About)
	}
	for _, a := range Abilities {
		line("| `%s` | %s |\n", a[0], a[1])
	}
	if n := strings.Count(string(b), "\n| `"); n != len(All())+len(Abilities)+14 {
		t.Errorf("docs/contribute/client.md has %d rows in its tables; one is too many, or missing", n)
	}
}
