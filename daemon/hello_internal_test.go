package daemon

import (
	"fmt"
	"os"
	"regexp"
	"testing"
)

// The documents state the time for a hello that the daemon has. No setting changes it.
func TestDocumentsStateTheTimeForAHello(t *testing.T) {
	var c Serving
	c.defaults()
	want := fmt.Sprintf("%g s", c.Limits.MaxSilent.Seconds())
	for file, pattern := range map[string]string{
		"../protocol/PROTOCOL.md":     `(?m)^\| time from connecting to hello \| (.+?) \| fatal, bad_frame \|$`,
		"../docs/operate/security.md": `hello within\s+(\d+ s)\s+of connecting`,
		"daemon.go":                   `MaxSilent +time\.Duration // from connecting to hello: (\d+ s)\.`,
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(string(b), -1)
		if len(found) != 1 || found[0][1] != want {
			t.Errorf("%s states %q, want %s", file, found, want)
		}
	}
}
