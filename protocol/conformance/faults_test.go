package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// faults are the faults that the client of package faulty can have. Each fault breaks the named
// points of the checklist in PROTOCOL.md, section 16, and each of the named scenarios must find it.
// The message of each scenario contains why.
var faults = []struct{ name, points, scenarios, why string }{
	{"leaves-its-descriptor-open-to-children", "M1", "close-on-exec", "not close-on-exec"},
	{"reads-shortest-numbers", "M2", "vectors-replies vectors-pushes", ""},
	{"reads-shortest-texts", "M2", "text-widths appended-fields", ""},
	{"refuses-appended-fields", "M3", "appended-fields vectors-replies", ""},
	{"knows-its-types-only", "M3", "appended-fields", ""},
	{"trusts-lengths", "M4", "vectors-bad-replies malformed-frames", "has ended"},
	{"takes-a-read-for-a-frame", "M5", "split-frames joined-frames", ""},
	{"reads-short-frames", "M6", "frame-limit text-widths", ""},
	{"reads-any-size", "M6", "frame-limit", "above the frame limit"},
	{"takes-empty-frames", "M6", "vectors-bad-replies", "frame-empty"},
	{"reads-past-the-array", "M7", "malformed-frames", "a byte behind the array"},
	{"nests-deeper", "M7", "malformed-frames", "level 9"},
	{"takes-0xc1-for-nil", "M7", "malformed-frames", "0xc1"},
	{"reads-64-bits", "M7", "vectors-bad-replies", ""},
	{"reads-negatives", "M7", "vectors-bad-replies", "negative"},
	{"cuts-codes", "M7", "malformed-frames", "code is 256"},
	{"passes-over-bad-frames", "M7", "vectors-bad-replies malformed-frames", "close its end"},
	{"fills-in-missing-fields", "M8", "vectors-bad-replies", "too-short"},
	{"reads-any-type", "M8", "vectors-bad-replies", ""},
	{"takes-too-few-grants", "M8", "many-lengths", "grants for 3 keys"},
	{"takes-too-few-codes", "M8", "many-lengths", "2 codes for 3 keys"},
	{"takes-any-index", "M8", "acquire-any-index", "not named"},
	{"sends-any-size", "M9", "acquire-many-too-large", ""},
	{"trims-keys", "M10", "keys", ""},
	{"mends-bad-keys", "M10", "bad-keys", "is success"},
	{"clamps-ttls", "M10", "bad-terms", "is success"},
	{"clamps-waits", "M10", "out-of-order", "wait"},
	{"fixes-nothing", "M10", "fixed fixed-renewed", ""},
	{"uses-one-id", "M11", "out-of-order", "used the id 7"},
	{"matches-replies-by-order", "M12", "out-of-order 500-in-flight", "went to another's request"},
	{"asks-one-by-one", "M12", "500-in-flight out-of-order", "in vain"},
	{"mixes-grants-up", "M12", "acquire-many", "and the client says"},
	{"takes-the-first-key", "M12", "acquire-any vectors-replies", "the client says"},
	{"refuses-unknown-ids", "M13", "unknown-id", ""},
	{"reads-texts", "M14", "failure-codes", ""},
	{"takes-unknown-codes-for-success", "M15", "unknown-code vectors-replies", ""},
	{"keeps-on-unknown-codes", "M15", "unknown-code", "answered with an unknown code"},
	{"refuses-unknown-events", "M16", "unknown-pushes vectors-pushes push-before-welcome", ""},
	{"expects-the-welcome-first", "M16", "push-before-welcome", ""},
	{"refuses-unknown-flags", "M17", "vectors-replies", ""},
	{"ignores-unknown-reasons", "M17", "unknown-pushes", "unknown reason"},
	{"takes-refusals-for-grants", "M18", "failure-codes exclusive semaphore-waits", "is success"},
	{"upgrades-by-itself", "M18", "upgrade", "is success"},
	{"takes-a-refused-many-for-granted", "M18", "acquire-many-fails", "is success"},
	{"has-one-error", "M18", "version-refused failure-codes", ""},
	{"says-hello-late", "M19", "hello push-before-welcome", ""},
	{"says-hello-twice", "M19", "silence", "first request is a hello, and no other"},
	{"speaks-any-version", "M20", "version-unknown", ""},
	{"leaves-waits-hanging", "M21", "connection-lost fatal", "in vain"},
	{"leaves-renewals-hanging", "M21", "in-flight-ends", "in vain"},
	{"believes-over-connections", "M21", "connection-lost daemon-restarted", "ended"},
	{"takes-holds-along", "M22", "daemon-restarted", "with a new daemon"},
	{"takes-fences-for-doubles", "M23", "fences-of-63-bits", "the client says"},
	{"invents-fences", "M23", "fences-rise", ""},
	{"refuses-fence-0", "M24", "degraded", ""},
	{"takes-all-owners-for-one", "M25", "owners", ""},
	{"hears-losses-of-owner-1-only", "M25", "lost-of-owners", "the second owner's hold"},
	{"takes-any-owner-for-lost", "M25", "lost-of-owners unknown-pushes", "does not believe it"},
	{"shares-nothing", "M26", "shared", ""},
	{"takes-permits-for-locks", "M26", "semaphore semaphore-waits", ""},
	{"downgrades-by-itself", "M26", "downgrade", "may not share"},
	{"keeps-nothing", "M26", "keep", "its keep is not over"},
	{"ignores-now", "M26", "keep", "released it now"},
	{"renews-nothing", "M26", "renew fixed-renewed", ""},
	{"re-enters-permits", "M27", "semaphore", "takes one of its own"},
	{"takes-any-fence-for-lost", "M27 M38", "permit-lost unknown-pushes", "does not believe it"},
	{"counts-as-the-daemon-does", "M28", "own-count", "the client says held"},
	{"releases-all-counts", "M28", "re-entry", "another session got"},
	{"releases-any-fence", "M29", "late-release", "is success"},
	{"takes-any-release-for-right", "M29", "release-not-held lost-released", "is success"},
	{"never-releases", "M29", "hello 500-keys", "another session to get"},
	{"believes-other-guards", "M30", "release-ends-all", "answered not_held"},
	{"keeps-what-is-unconfirmed", "M30", "failure-codes", "answered unknown"},
	{"believes-silence", "M31", "silence late-grant client-stopped", "passed"},
	{"ignores-keepalives", "M31", "keepalive", "the validity that a keepalive has stated"},
	{"counts-timers", "M32", "client-stopped silence", ""},
	{"lets-keepalives-cover-later-grants", "M33", "keepalive-before-grant",
		"the keepalive came before"},
	{"shortens-by-keepalives", "M34", "keepalive-never-shortens", "does not believe"},
	{"shortens-by-renewals", "M34", "keepalive-never-shortens", "does not believe"},
	{"moves-ends-back", "M34", "end-keeps", "one of two renewals"},
	{"forgets-the-end", "M35", "keepalive-and-end", "it is fixed"},
	{"counts-left-from-receipt", "M36", "late-grant", "had passed"},
	{"takes-every-clock-for-its-own", "M37", "clock-ahead clock-behind", ""},
	{"believes-a-slow-hello", "M37", "slow-hello", "the hello took"},
	{"maps-times-from-the-welcome", "M37", "slow-hello", "the hello took"},
	{"ignores-lost", "M38", "lost text-widths joined-frames", ""},
	{"ignores-fixed-ends", "M38", "lost", "fixed_end"},
	{"calls-a-fixed-end-silence", "M39", "fixed-end", `it is "fixed_end"`},
	{"calls-every-end-fixed", "M52", "longest-hold", `it is "too_long"`},
	{"calls-the-longest-hold-silence", "M52", "longest-hold", `it is "too_long"`},
	{"believes-a-renewal-that-failed", "M40", "keepalive-never-shortens", "answered not_held"},
	{"re-enters-what-was-lost", "M41", "lost-re-entry", "it was called lost"},
	{"re-enters-what-ran-out", "M41", "lost-re-entry", "validity has run out"},
	{"re-enters-over-connections", "M41", "lost-re-entry", "connection has ended"},
	{"takes-grants-behind-a-loss", "M41", "lost-in-flight", "acquired it again"},
	{"tells-of-force-at-once", "M42", "forced-released", ""},
	{"ignores-cancel", "M43", "cancel", "in vain"},
	{"forgets-what-it-gave-up", "M43", "cancel-crossed", "crossed its cancel"},
	{"forgets-one-of-several", "M43", "acquire-any-crossed", "crossed its cancel"},
	{"asks-before-its-cancel-is-answered", "M44", "cancel-acquire", "before the cancel"},
	{"waits-on-a-hung-daemon", "M45", "hung-daemon", "in vain"},
	{"takes-a-wait-for-a-hang", "M45", "hung-daemon", ""},
	{"dials-for-ever", "M46", "no-daemon", "in vain"},
	{"leaves-when-told-of-a-drain", "M47", "going-away", ""},
	{"keeps-its-connection-on-close", "M48", "close", "the client has closed"},
	{"stays-when-its-input-ends", "M48", "stdin-closed", ""},
	{"leaves-its-socket-to-a-fork", "M49", "fork", "keeps a copy"},
	{"shuts-down-in-a-fork", "M49", "fork", ""},
	{"holds-in-a-fork", "M49", "fork", "a forked child believes"},
	{"denies-and-forgets", "M50", "expired-stays-lost", "asked whether it holds, and a keepalive"},
	{"revives-by-keepalives", "M50", "expired-stays-lost", "asked whether it holds, and a keepalive"},
	{"changes-what-ran-out", "M50", "expired-stays-lost", "told to renew it"},
	{"takes-late-renewals-for-success", "M50", "expired-stays-lost", "is success"},
	{"revives-by-renewals", "M50", "expired-stays-lost", "its renewal was granted"},
	{"looks-away-on-release", "M51", "expired-released", "is success"},
	{"releases-what-ran-out-as-the-daemon-says", "M51",
		"expired-released expired-stays-lost lost-re-entry fixed-end", "is success"},
	{"waits-for-quiet-releases", "M26", "quiet-release", "and the flags 0"},
	{"unlocks-every-fence", "M26", "force-unlock", "its answer says otherwise"},
	{"ends-holds-by-failed-releases", "M53", "quiet-release-failed", "of an earlier hold has failed"},
	{"releases-lost-holds-quietly", "M54", "quiet-release-expired", "a quiet release of it"},
	{"stays-after-fatal", "S1", "fatal", "close its end"},
	{"stays-when-the-daemon-hangs-up", "S1", "connection-lost", "close its end"},
	{"answers-no-keepalives", "S2", "heartbeat heartbeat-kept", "keepalive"},
	{"answers-keepalives-by-the-welcome", "S2", "heartbeat-added", "keepalive"},
	{"keeps-what-ran-out", "S3", "expired-released", "whose validity has run out"},
	{"keeps-what-came-late", "S3", "expired-released", "came when its deadline had passed"},
	{"keeps-what-was-forced", "S4", "forced-released", "ended by force"},
	{"tells-nothing", "S5", "lost", "the lost event"},
	{"ignores-failed-releases", "S6", "quiet-release-failed", "the lost event"},
	{"tells-of-losses-that-cross", "S6", "quiet-release-failed", "has the reason"},
}

// TestFaultsAreFound shows that the runner finds each fault, and that each scenario finds at least
// one fault.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	for _, s := range All() {
		found := false
		for _, f := range faults {
			found = found || slices.Contains(strings.Fields(f.scenarios), s.Name)
		}
		if !found {
			t.Errorf("nothing shows that %s finds a fault", s.Name)
		}
	}
	type run struct {
		name string
		done chan Result
		why  string
	}
	var runs []run
	slots := make(chan struct{}, 24) // many at once, because most of them wait for a timeout
	for _, f := range faults {
		for scenario := range strings.FieldsSeq(f.scenarios) {
			r := run{f.name + "/" + scenario, make(chan Result, 1), f.why}
			runs = append(runs, r)
			go func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				rs, err := Run(t.Context(), Options{Command: self(t), Only: []string{scenario},
					Timeout: 12 * time.Second, Impatient: true,
					Env: []string{asClient + "=faulty", noRaceSleep, withFault + "=" + f.name}})
				if err != nil {
					rs = []Result{{Why: err.Error()}}
				}
				r.done <- rs[0]
			}()
		}
	}
	for _, r := range runs {
		t.Run(r.name, func(t *testing.T) {
			got := <-r.done
			if got.Outcome != Failed || !strings.Contains(got.Why, r.why) {
				t.Errorf("%s: %s; want a failure with %q\n%s", got.Outcome, got.Why, r.why,
					strings.Join(got.Exchange, "\n"))
			} else {
				t.Logf("%d ms: %s", got.Millis, got.Why)
			}
			frame := func(line string) bool { return strings.HasPrefix(line, "C ") || strings.HasPrefix(line, "D ") }
			if got.Name != "no-daemon" && !slices.ContainsFunc(got.Exchange, frame) {
				t.Errorf("the exchange shows no frame on the socket:\n%s", strings.Join(got.Exchange, "\n"))
			}
		})
	}
}
