package conformance

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The environment of the test program when it is the client.
const (
	asClient  = "LOCKSIDECAR_TEST_REFERENCE"
	asMutant  = "LOCKSIDECAR_TEST_MUTANT"
	sockVar   = "LOCKSIDECAR_SOCKET"
	testBound = 60 * time.Second

	noRaceSleep = "GORACE=atexit_sleep_ms=0" // or each client takes a second to end
)

func TestMain(m *testing.M) {
	if os.Getenv(asClient) != "" {
		runReference(os.Getenv(sockVar), os.Getenv(asMutant))
		return
	}
	goleak.VerifyTestMain(m)
}

func self(t *testing.T) []string {
	exe, err := os.Executable()
	if err != nil {
		t.Error(err)
	}
	return []string{exe}
}

func TestReferencePassesAll(t *testing.T) {
	t.Parallel()
	rs, err := Run(t.Context(), Options{Command: self(t), Timeout: testBound, Env: []string{asClient + "=1", noRaceSleep}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		t.Logf("%-24s %-7s %4d ms", r.Name, r.Outcome, r.Millis)
		if r.Outcome != Passed {
			t.Errorf("%s %s: %s\n%s", r.Name, r.Outcome, r.Why, strings.Join(r.Exchange, "\n"))
		}
	}
}

// mutants names for each fault the scenario that has to find it, and a piece of
// what it says.
var mutants = []struct{ mutant, scenario, why string }{
	{"ignores-lost", "lost", "still holds"},
	{"release-is-always-right", "lost-released", "is success"},
	{"tells-nothing", "lost", "the lost event"},
	{"believes-silence", "silence", "its deadline has passed"},
	{"believes-silence", "client-stopped", "was stopped"},
	{"ignores-beats", "beat", "what a beat has stated"},
	{"beats-cover-later-grants", "beat-before-grant", "the beat came before"},
	{"beats-shorten", "beat-never-shortens", "does not believe"},
	{"forgets-the-end", "beat-and-end", "it is fixed"},
	{"counts-left-from-receipt", "late-grant", "its deadline had passed"},
	{"takes-every-clock-for-its-own", "clock-ahead", "its deadline has passed"},
	{"takes-every-clock-for-its-own", "clock-behind", ""},
	{"believes-a-slow-hello", "slow-hello", "the hello took"},
	{"refuses-appended-fields", "appended-fields", ""},
	{"shortest-numbers-only", "vectors-replies", ""},
	{"shortest-numbers-only", "vectors-pushes", ""},
	{"short-frames-only", "frame-limit", ""},
	{"short-frames-only", "text-widths", ""},
	{"one-read-is-one-frame", "split-frames", ""},
	{"one-read-is-one-frame", "joined-frames", ""},
	{"passes-over-bad-frames", "vectors-bad-replies", "close its end"},
	{"unknown-code-is-success", "unknown-code", "is success"},
	{"unknown-code-is-success", "vectors-replies", "is success"},
	{"unknown-event-is-fatal", "unknown-pushes", ""},
	{"unknown-event-is-fatal", "vectors-pushes", ""},
	{"reuses-ids", "out-of-order", "used the id 7"},
	{"matches-replies-by-order", "out-of-order", "went to another's request"},
	{"matches-replies-by-order", "500-in-flight", "went to another's request"},
	{"fences-are-doubles", "fences-of-63-bits", "the client says"},
	{"timeout-is-success", "failure-codes", "is success"},
	{"timeout-is-success", "exclusive", "is success"},
	{"speaks-any-version", "version-unknown", ""},
	{"hangs-in-flight", "connection-lost", "in vain"},
	{"stays-after-fatal", "fatal", "close its end"},
	{"believes-over-connections", "connection-lost", "the connection has ended"},
	{"believes-over-connections", "daemon-restarted", "its daemon has ended"},
	{"never-pings", "heartbeat", "a ping behind the beat"},
	{"never-pings", "heartbeat-kept", "does not answer beats"},
	{"keeps-on-close", "close", "the client has closed"},
	{"stays-after-stdin", "stdin-closed", ""},
	{"releases-any-fence", "late-release", "is success"},
	{"release-is-always-right", "release-not-held", "is success"},
	{"releases-all-counts", "re-entry", "another session got"},
	{"never-releases", "hello", ""},
	{"shares-nothing", "shared", ""},
	{"downgrades-alone", "downgrade", "may not share"},
	{"forgets-crossed-grant", "cancel-crossed", "crossed its cancel"},
	{"trims-keys", "keys", ""},
	{"lets-bad-keys-through", "bad-keys", "is success"},
	{"mixes-many-up", "acquire-many", "and the client says"},
	{"one-owner-for-all", "owners", ""},
	{"refuses-fence-0", "degraded", ""},
	{"ignores-fixed", "fixed", "its time is over"},
	{"ignores-fixed", "fixed-renewed", "the flags 0"},
	{"renews-nothing", "fixed-renewed", ""},
	{"renews-nothing", "renew", "is success"},
	{"ignores-cancel", "cancel", "in vain"},
	{"parts-when-told-to-go", "going-away", ""},
	{"clamps-ttls", "bad-terms", "is success"},
	{"dials-for-ever", "no-daemon", "in vain"},
	{"unknown-id-is-fatal", "unknown-id", ""},
	{"one-at-a-time", "500-in-flight", "in vain"},
	{"never-releases", "500-keys", "another session to get"},
	{"upgrades-alone", "upgrade", "is success"},
	{"invents-fences", "fences-rise", "do not rise"},
	{"has-one-error", "version-refused", "bad_version"},
	{"welcome-comes-first", "push-before-welcome", ""},
	{"permits-are-locks", "semaphore", "takes one of its own"},
	{"permits-are-locks", "semaphore-waits", "is success"},
	{"loses-all-permits", "permit-lost", "does not believe it"},
	{"many-cannot-fail", "acquire-many-fails", "is success"},
	{"many-cannot-fail", "acquire-many-too-large", "is success"},
}

// TestMutantsFail is the proof that the runner finds faults: there is one for each
// scenario at least.
func TestMutantsFail(t *testing.T) {
	t.Parallel()
	for _, s := range All() {
		if !slices.ContainsFunc(mutants, func(m struct{ mutant, scenario, why string }) bool { return m.scenario == s.Name }) {
			t.Errorf("nothing shows that %s finds a fault", s.Name)
		}
	}
	results := make([]chan Result, len(mutants))
	slots := make(chan struct{}, 24) // most of them wait in vain
	for i, m := range mutants {
		results[i] = make(chan Result, 1)
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			rs, err := Run(t.Context(), Options{Command: self(t), Only: []string{m.scenario}, Timeout: 10 * time.Second,
				Env: []string{asClient + "=1", noRaceSleep, asMutant + "=" + m.mutant}})
			if err != nil {
				rs = []Result{{Why: err.Error()}}
			}
			results[i] <- rs[0]
		}()
	}
	for i, m := range mutants {
		t.Run(m.mutant+"/"+m.scenario, func(t *testing.T) {
			if r := <-results[i]; r.Outcome != Failed || !strings.Contains(r.Why, m.why) {
				t.Errorf("%s: %s; expected was a failure with %q\n%s", r.Outcome, r.Why, m.why, strings.Join(r.Exchange, "\n"))
			} else {
				t.Log(r.Why)
			}
		})
	}
}

// TestRulesOfTheLines has clients that do not keep to them.
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
		{`echo '{"event":"ready","can":["flying"]}'; cat >/dev/null`, "hello", Failed, `"flying", which does not exist`},
		{ready + `cat >/dev/null`, "shared", Skipped, "does not declare [shared]"},
		{ready + `read l; echo '{"id":1}'; cat >/dev/null`, "hello", Failed, `either "ok":true or "error":NAME`},
		{ready + `read l; echo '{"id":7,"ok":true}'; cat >/dev/null`, "hello", Failed, "an answer to nothing that was asked"},
		{ready + `read l; echo '{"id":1,"ok":true}'; echo '{"id":1,"ok":true}'; cat >/dev/null`, "hello", Failed, "a second answer"},
		{ready + `read l; echo '{"ok":true}'; cat >/dev/null`, "hello", Failed, "neither an answer (id) nor an event"},
		{ready + `read l; echo '{"id":1,"ok":true}'; read l; echo '{"id":2,"ok":true}'; cat >/dev/null`, "hello", Failed, "has no fence"},
		{ready + `read l; echo '{"id":1,"ok":true}'; read l; echo '{"id":2,"ok":true,"fence":1.8e18}'; cat >/dev/null`, "hello", Failed, "not a whole number"},
		{ready + `read l; echo '{"id":1,"ok":true}'; read l; echo '{"id":2,"error":"denied"}'; cat >/dev/null`, "silence", Failed, "has not asked the daemon"},
	} {
		rs, err := Run(t.Context(), Options{Command: []string{"sh", "-c", c.script}, Only: []string{c.scenario}, Timeout: testBound})
		if err != nil {
			t.Fatal(err)
		}
		if r := rs[0]; r.Outcome != c.outcome || !strings.Contains(r.Why, c.why) {
			t.Errorf("%s: %s: %s; expected is %q", c.script, r.Outcome, r.Why, c.why)
		}
	}
	if _, err := Run(t.Context(), Options{Command: []string{"sh"}, Only: []string{"nothing"}}); err == nil {
		t.Error("a scenario that does not exist is run")
	}
	if _, err := Run(t.Context(), Options{Command: []string{"/no/such/program"}}); err == nil {
		t.Error("a program that does not exist is run")
	}
}

// TestREADMEListsEverything holds the tables of clients/README.md against the program.
func TestREADMEListsEverything(t *testing.T) {
	b, err := os.ReadFile("../../../../clients/README.md")
	if err != nil {
		t.Fatal(err)
	}
	line := func(format string, a ...any) {
		if want := fmt.Sprintf(format, a...); !strings.Contains(string(b), want) {
			t.Errorf("clients/README.md has no line %s", want)
		}
	}
	for _, s := range All() {
		line("| `%s` | %s | %s | %s |\n", s.Name, s.Section, strings.Join(s.Needs, ", "), s.About)
	}
	for _, a := range Abilities {
		line("| `%s` | %s |\n", a[0], a[1])
	}
	if n := strings.Count(string(b), "\n| `"); n != len(All())+len(Abilities)+10 {
		t.Errorf("clients/README.md has %d rows in its tables; one is too many, or missing", n)
	}
}
