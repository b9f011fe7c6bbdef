package chaos

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"
)

// The addresses of other servers are replaced by their links, and everything else stays the same.
func TestRelayNamesLinks(t *testing.T) {
	n := &names{}
	if err := n.set([]string{"127.0.0.1:40001", "127.0.0.1:40002"},
		[]string{"169.254.7.1:3333", "169.254.7.1:44444"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ said, heard string }{
		{"*2|$9|127.0.0.1|$5|40001|", "*2|$11|169.254.7.1|$4|3333|"},
		{"$45|main 127.0.0.1 40001 127.0.0.1 40002 and more|",
			"$48|main 169.254.7.1 3333 169.254.7.1 44444 and more|"},
		{"-MOVED 3999 127.0.0.1:40002|", "-MOVED 3999 169.254.7.1:44444|"},
		{"*2|:40002|:40003|", "*2|:44444|:40003|"},
		{"$-1|_|*-1|+OK|$0||:1|", "$-1|_|*-1|+OK|$0||:1|"},
		{"$6|40001x|$8|a|$5|b|", "$6|40001x|$8|a|$5|b|"}, // a text may contain any bytes
	} {
		said, heard := strings.ReplaceAll(c.said, "|", "\r\n"), strings.ReplaceAll(c.heard, "|", "\r\n")
		var out bytes.Buffer
		if err := n.pass(bufio.NewWriter(&out), bufio.NewReader(strings.NewReader(said))); err != io.EOF || out.String() != heard {
			t.Errorf("%q: %q, %v", said, out.String(), err)
		}
	}
}
