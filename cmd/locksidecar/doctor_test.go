package main

import (
	"io"
	"strings"
	"testing"
)

// doctor finds a store that is down, and gives advice.
func TestDoctorFindsAStoreThatIsDown(t *testing.T) {
	h := bareHost(t)
	h.daemon = h.run("serve", "--upstream", "redis://127.0.0.1:1", "--outage", "local")
	var out string
	eventually(t, "the daemon answers", func() bool {
		p := h.run("doctor")
		b, err := io.ReadAll(p.out)
		if err != nil {
			t.Fatal(err)
		}
		p.ends(exitUnavailable)
		out = string(b)
		return strings.Contains(out, "ok       daemon")
	})
	if !strings.Contains(out, "failed   store") || !strings.Contains(out, "to do: restore the store") {
		t.Error(out)
	}
}
