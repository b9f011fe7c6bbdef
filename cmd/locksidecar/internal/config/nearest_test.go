package config

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"ttl", "max_wait", "max_hold", "upstream", "hand_overs", "namespaces"}
	for name, want := range map[string]string{
		"upstrem": "upstream", "max-wait": "max_wait", "Max_Hold": "max_hold", "namespace": "namespaces", "handovers": "hand_overs",
		"ttl2": "ttl", "tls": "", "socket": "", "": "", "x": "",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
