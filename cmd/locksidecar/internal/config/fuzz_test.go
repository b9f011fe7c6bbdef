package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// FuzzFile checks that any file is either read, or refused with all its faults. Neither way shows a
// password.
func FuzzFile(f *testing.F) {
	example, err := os.ReadFile("../../../../deploy/locksidecar.example.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	f.Add(strings.ReplaceAll(string(example), "\n#", "\n"))
	for _, s := range []string{"upstream: redis://u:SECRET@h", "password: SECRET",
		"stores: {a: {upstream: 'etcd://h', password: SECRET}}", "password: [SECRET]",
		"namespaces: {'a:': {users: [root, '1'], max_holds: 5}}", "limits:\n  max_user_holds: 7\n",
		"classes: {a: [b, c]}", "ttl: &a 3s\nmax_wait: *a",
		"---\nttl: 1s\n---\n", "? [a]\n: b", "ttl: !!binary aGk=", "a: {b: {c: {d: {}}}}",
		"\"\\u0000\": 1", "SECRET: 1", "namespaces: {SECRET: {ttl: x}}"} {
		f.Add(s)
	}
	const secret = "hunter2-sesame"
	path := filepath.Join(f.TempDir(), "config.yaml")
	none := func(string) (string, bool) { return "", false }
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "SECRET", secret)),
			0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path, none, pflag.NewFlagSet("", pflag.ContinueOnError))
		inPassword := false
		for _, s := range append([]*StoreSettings{&c.Main}, c.Stores...) {
			inPassword = inPassword || s.Password == secret
		}
		if err != nil && inPassword && strings.Count(text, "SECRET") == 1 &&
			strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
		for i := range settings {
			if v := settings[i].Value(c); settings[i].Secret && v != "" && v != "(set)" {
				t.Errorf("%s is shown as %s", settings[i].Path, v)
			}
		}
		if err == nil && c.Space("key") == nil {
			t.Error("a key has no namespace")
		}
	})
}
