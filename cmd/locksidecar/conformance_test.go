package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// conform runs the command with a client that is a shell script.
func conform(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var files [2]*os.File
	for i, name := range []string{"out", "err"} {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	m := &Main{Args: append([]string{"conformance"}, args...), Env: func(string) (string, bool) {
		return "", false
	},
		Stdin: os.Stdin, Stdout: files[0], Stderr: files[1]}
	code = m.Run(t.Context())
	o, _ := os.ReadFile(files[0].Name())
	e, _ := os.ReadFile(files[1].Name())
	return code, string(o), string(e)
}

func TestConformanceCommand(t *testing.T) {
	const able = `echo '{"event":"ready","client":"sh 1","can":[]}'; cat >/dev/null`
	const unruly = `echo nonsense; cat >/dev/null`
	for _, c := range []struct {
		args       []string
		code       int
		out, stder string
	}{
		{[]string{"--list"}, 0, "late-grant", ""},
		{nil, exitUsage, "", "no client program is named"},
		{[]string{"--client", "/no/such/program"}, exitUsage, "", "the client program"},
		{[]string{"--only", "nothing", "--client", "sh"}, exitUsage, "", `no scenario "nothing"`},
		{[]string{"--timeout", "-1s", "--client", "sh"}, exitUsage, "", "--timeout must be positive"},
		{[]string{"--only", "shared", "--only", "renew", "--client", "sh", "--", "-c", able}, 0,
			"0 passed, 0 failed, 2 skipped", ""},
		{[]string{"--only", "hello", "--client", "sh", "--", "-c", unruly}, exitFailed,
			"FAIL  hello", ""},
		{[]string{"--only", "hello", "--only", "shared", "--client", "sh", "--", "-c", unruly},
			exitFailed, `| < nonsense`, ""},
	} {
		code, out, errs := conform(t, c.args...)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.stder) {
			t.Errorf("%q: exit code %d, want %d\n%s%s", c.args, code, c.code, out, errs)
		}
	}
}

func TestConformanceJSON(t *testing.T) {
	_, out, _ := conform(t, "--json", "--only", "shared", "--only", "hello", "--client", "sh", "--",
		"-c", `echo '{"event":"ready","client":"sh 1"}'; exit`)
	var got []string
	for line := range strings.Lines(out) {
		var r struct{ Name, Section, Outcome, Client string }
		d := json.NewDecoder(bytes.NewReader([]byte(line)))
		if err := d.Decode(&r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		got = append(got, r.Name+" "+r.Outcome+" "+r.Client)
	}
	if strings.Join(got, ", ") != "shared skipped sh 1, hello failed sh 1" {
		t.Error(got)
	}
}
