package upstream

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRegistrationSurvivesItsText(t *testing.T) {
	r := Registration{Host: "web-3", Version: "1.2.3", PID: 4711, Started: 1700000000123}
	if got, ok := ParseRegistration(r.Encode()); !ok || got != r {
		t.Fatalf("%+v, %v", got, ok)
	}
	// The entry of a later version may have more fields.
	if got, ok := ParseRegistration(`{"host":"web-3","zone":"eu","pid":1}`); !ok ||
		got.Host != "web-3" || got.PID != 1 {
		t.Fatalf("%+v, %v", got, ok)
	}
}

func TestHostileRegistrations(t *testing.T) {
	for _, text := range []string{"", "no JSON", "null", "{}", `{"host":""}`, `{"host":7}`,
		`{"host":"` + strings.Repeat("x", maxEntry) + `"}`} {
		if r, ok := ParseRegistration(text); ok {
			t.Errorf("%.40q is %+v", text, r)
		}
	}
	for _, host := range []string{"\x1b[2Jweb", "web\n3", "\u202eweb", "\u0085", "\xff\xfe",
		strings.Repeat("é", 300)} {
		for _, r := range []Registration{{Host: host}, {Host: "a", Version: host}} {
			got, ok := ParseRegistration(r.Encode())
			if !ok {
				t.Errorf("%q: %+v", host, got)
			}
			for _, s := range []string{got.Host, got.Version} {
				if strings.ContainsAny(s, "\x1b\n\u202e\u0085") || !utf8.ValidString(s) || len(s) > maxHost {
					t.Errorf("%q came through as %q", host, s)
				}
			}
		}
	}
	r, ok := ParseRegistration(`{"host":"\u001b]0;x\u0007web","pid":-4,"started":-5}`)
	if !ok || r.Host != "\ufffd]0;x\ufffdweb" || r.PID != 0 || r.Started != 0 {
		t.Errorf("%+v, %v", r, ok)
	}
}
