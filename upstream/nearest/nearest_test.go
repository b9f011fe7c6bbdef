package nearest

import "testing"

func TestOf(t *testing.T) {
	known := []string{"ttl", "max_wait", "max_hold", "upstream", "max_handoffs", "namespaces", "lock",
		"locks", "wait", "who"}
	for name, want := range map[string]string{
		"upstrem": "upstream", "max-wait": "max_wait", "Max_Hold": "max_hold", "namespace": "namespaces",
		"maxhandoffs": "max_handoffs",
		"lokc":        "lock", "lcoks": "locks", "wiat": "wait", "upstraem": "upstream",
		"mxa_wiat": "max_wait", "naemspcaes": "namespaces",
		"xma_wiat_": "", "woh": "who", "hwo": "who", "ow": "",
		"ttl2": "ttl", "tls": "", "socket": "", "": "", "x": "",
	} {
		if got := Of(name, known); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 1},
		{"abcd", "badc", 2}, {"abc", "cba", 2},
		{"ca", "abc", 3}, {"kitten", "sitting", 3}, {"timeout", "tiemotu", 2}, {"aab", "aba", 1},
	} {
		if d, e := distance(c.a, c.b), distance(c.b, c.a); d != c.want || e != c.want {
			t.Errorf("%q, %q: %d and %d, want %d", c.a, c.b, d, e, c.want)
		}
	}
}
