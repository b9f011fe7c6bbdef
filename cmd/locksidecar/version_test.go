package main

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// setVersion is for "make version V=1.2.3", which writes the version to every file that contains
// it.
var setVersion = flag.String("set", "", "write this `version` to VERSION and to all that has to agree with it")

// wellFormed matches a version that Go, Maven and Python (which spells it 1.2.3rc4) all accept.
var wellFormed = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-rc\.[1-9]\d*)?$`)

const (
	pom       = "clients/java/pom.xml"
	changelog = "CHANGELOG.md"
	coming    = "(not yet released)"
	artifact  = `<artifactId>locksidecar-client</artifactId>\s*<version>([^<]+)</version>`
)

// versions lists the files that contain the version. The group of each pattern matches the version.
// pyproject.toml reads its own from __init__.py.
var versions = []struct {
	path   string
	at     *regexp.Regexp
	spells func(string) string
}{
	{"cmd/locksidecar/VERSION", regexp.MustCompile(`^(\S+)\n$`), asItIs},
	{"clients/python/src/locksidecar/__init__.py",
		regexp.MustCompile(`(?m)^__version__ = "([^"\n]+)"$`), pythonic},
	{"clients/python/pyproject.toml", regexp.MustCompile(`"locksidecar-daemon==([^"]+)"`), pythonic},
	{pom, regexp.MustCompile(artifact), asItIs},
	{"bench/clients/java/worker/pom.xml", regexp.MustCompile(artifact), asItIs},
	{"docs/guides/java.md", regexp.MustCompile(artifact), asItIs},
	{"deploy/helm/locksidecar/Chart.yaml", regexp.MustCompile(`(?m)^version: (\S+)$`), asItIs},
	{"deploy/helm/locksidecar/Chart.yaml", regexp.MustCompile(`(?m)^appVersion: (\S+)$`), asItIs},
	{"deploy/kubernetes/sidecar.yaml", regexp.MustCompile(`image: ghcr\.io/locksidecar/locksidecar:(\S+)`), asItIs},
	{"deploy/kubernetes/daemonset.yaml", regexp.MustCompile(`image: ghcr\.io/locksidecar/locksidecar:(\S+)`), asItIs},
	{changelog, regexp.MustCompile(`^# Changelog\n\n## (\S+)`), asItIs},
}

func asItIs(v string) string   { return v }
func pythonic(v string) string { return strings.Replace(v, "-rc.", "rc", 1) }

func TestVersionIsTheSameEverywhere(t *testing.T) {
	if *setVersion != "" {
		writeVersion(t, *setVersion)
		return
	}
	if !wellFormed.MatchString(version) {
		t.Errorf("VERSION is %q, which is no version", version)
	}
	for _, p := range versions {
		if found, _ := find(t, p.path, p.at); found != p.spells(version) {
			t.Errorf("%s says %s, cmd/locksidecar/VERSION %s; make version V=… writes it everywhere", p.path,
				found, version)
		}
	}
	project, _, _ := strings.Cut(slurp(t, "clients/python/pyproject.toml"), "\n[tool.")
	if !strings.Contains(project, `dynamic = ["version"]`) ||
		regexp.MustCompile(`(?m)^version\b`).MatchString(project) {
		t.Error("pyproject.toml has a version of its own")
	}
}

// The version of a commit with a release tag is the version of the tag. (make packages runs this
// test without the cache, because Go may remember a result from before the tag.)
func TestVersionIsTheTag(t *testing.T) {
	out, err := exec.Command("git", "tag", "--points-at", "HEAD", "--list", "v*").Output()
	if err != nil {
		t.Skipf("no checkout of git's here: %v", err)
	}
	for tag := range strings.FieldsSeq(string(out)) {
		if tag != "v"+version {
			t.Errorf("this commit is tagged %s, cmd/locksidecar/VERSION says %s", tag, version)
		}
		if text := slurp(t, changelog); headingSays(text, strings.Index(text, "## "), coming) {
			t.Errorf("this commit is tagged %s, the changelog says %s", tag, coming)
		}
	}
}

// The program and the daemon's welcome state the same version.
func TestVersionIsSaid(t *testing.T) {
	h := newHost(t)
	for _, command := range []string{"version", "status"} {
		p := h.run(command, "-o", "json")
		var said struct{ Version string }
		if err := json.Unmarshal([]byte(p.rest()), &said); err != nil || said.Version != version {
			t.Errorf("%s says %q, want %q (%v)", command, said.Version, version, err)
		}
		p.ends(0)
	}
}

func TestCommitOf(t *testing.T) {
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "c0ffee"},
			{Key: "vcs.modified", Value: modified}}
	}
	for _, c := range []struct {
		main     string
		settings []debug.BuildSetting
		want     string
	}{
		{"(devel)", nil, ""},
		{"", vcs("false"), "c0ffee"},
		{"v0.0.0-20260102030405-0123456789ab+dirty", vcs("true"), "c0ffee-modified"},
		{"v0.0.0-20260102030405-0123456789ab", nil, "0123456789ab"},
		{"v1.2.4-0.20260102030405-0123456789ab", nil, "0123456789ab"},
		{"v1.2.3-rc.1.0.20260102030405-0123456789ab+incompatible", nil, "0123456789ab"},
		{"v1.2.3", nil, ""},
		{"v1.2.3-rc.1", nil, ""},
	} {
		got := commitOf(&debug.BuildInfo{Main: debug.Module{Version: c.main}, Settings: c.settings})
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.main, got, c.want)
		}
	}
}

// writeVersion implements "make version". It adds a new heading to the changelog. If the newest
// release in the changelog is not released yet, it renames that heading instead.
func writeVersion(t *testing.T, v string) {
	if !wellFormed.MatchString(v) {
		t.Fatalf("%q is no version: they look like 1.2.3 or 1.2.3-rc.4", v)
	}
	texts := make([]string, len(versions)) // all versions are found before anything is written
	for i, p := range versions {
		found, at := find(t, p.path, p.at)
		text := slurp(t, p.path)
		texts[i] = text[:at] + p.spells(v) + text[at+len(found):]
		switch {
		case p.path == pom && found != v: // the time that the files in the jars get
			stamp := regexp.MustCompile(`(<project\.build\.outputTimestamp>)[^<]+`)
			texts[i] = stamp.ReplaceAllString(texts[i],
				"${1}"+time.Now().UTC().Format("2006-01-02T00:00:00Z"))
		case p.path == changelog && found != v && !headingSays(text, at, coming):
			texts[i] = text[:at] + v + " " + coming + "\n\n## " + text[at:]
		}
	}
	for i, p := range versions {
		if err := os.WriteFile(fromRoot(p.path), []byte(texts[i]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// headingSays reports whether the rest of the line from index i contains what.
func headingSays(text string, i int, what string) bool {
	line, _, _ := strings.Cut(text[i:], "\n")
	return strings.Contains(line, what)
}

func fromRoot(path string) string { return filepath.Join("..", "..", filepath.FromSlash(path)) }

func slurp(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(fromRoot(path))
	if errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%v: this test needs the whole repository", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// find finds a version in a file. begins is the index of its first byte.
func find(t *testing.T, path string, at *regexp.Regexp) (found string, begins int) {
	t.Helper()
	text := slurp(t, path)
	m := at.FindStringSubmatchIndex(text)
	if m == nil {
		t.Fatalf("%s: no version found by %s", path, at)
	}
	return text[m[2]:m[3]], m[2]
}
