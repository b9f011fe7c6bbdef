package protocol

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Encoding and decoding an acquire, its grant, a release and its answer must not allocate.
func TestHotPathDoesNotAllocate(t *testing.T) {
	for _, key := range []string{"order:42", strings.Repeat("k", MaxKey), strings.Repeat("日", 60)} {
		acquire := AppendRequest(nil, &Request{Op: OpAcquire, ID: 1 << 40, Key: []byte(key), Owner: 7,
			Wait: -1, TTL: 30000})
		release := AppendRequest(nil, &Request{Op: OpRelease, ID: 1 << 40, Key: []byte(key), Owner: 7,
			Fence: 1 << 60})
		many := AppendRequest(nil, &Request{Op: OpAcquireMany, ID: 9,
			Keys: [][]byte{[]byte(key), []byte("b")}, Owner: 7})
		traced := AppendRequest(nil, &Request{Op: OpAcquire, ID: 9, Key: []byte(key),
			Trace: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")})
		q := Request{Keys: make([][]byte, 0, 2)}
		g := Grant{Fence: 1 << 60, Left: 29698, Deadline: 1 << 40, Count: 1}
		buf := make([]byte, 0, 1024)
		for name, f := range map[string]func(){
			"decode acquire":      func() { must(t, decodeFrame(acquire, &q)) },
			"decode release":      func() { must(t, decodeFrame(release, &q)) },
			"decode traced":       func() { must(t, decodeFrame(traced, &q)) },
			"decode acquire-many": func() { must(t, decodeFrame(many, &q)) },
			"encode grant":        func() { buf = AppendGrant(buf[:0], 1<<40, &g) },
			"encode released":     func() { buf = AppendReleased(buf[:0], 1<<40, 0) },
			"encode busy":         func() { buf = AppendError(buf[:0], 1<<40, Busy, "held", 29698) },
			"encode keepalive":    func() { buf = AppendKeepalive(buf[:0], 1<<40, 29698) },
			"encode lost":         func() { buf = AppendLost(buf[:0], key, 7, 1<<60, LostExpired) },
			"decode grant": func() {
				buf = AppendGrant(buf[:0], 1<<40, &g)
				m, err := DecodeMessage(buf[HeaderLen:])
				must(t, err)
				got, err := m.Grant()
				must(t, err)
				if got != g {
					t.Fatal(got)
				}
			},
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s, key of %d bytes: %v allocations", name, len(key), n)
			}
		}
	}
}

func decodeFrame(frame []byte, q *Request) error {
	p, _, ok, err := Cut(frame, DefaultMaxFrame)
	if !ok || err != nil {
		return fmt.Errorf("cut: %v %w", ok, err)
	}
	return DecodeRequest(p, q)
}

func must(t *testing.T, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// A request that is decoded into a used Request keeps nothing of the earlier one.
func TestDecodeForgetsTheRequestBefore(t *testing.T) {
	var q Request
	for _, v := range append(readVectors(t, "requests.txt"),
		readVectors(t, "requests-accept.txt")...) {
		if err := DecodeRequest(v.payload(), &q); err != nil {
			t.Fatalf("%s: %v", v.name, err)
		}
		same(t, q, v.request())
	}
}

// CheckKey gives the same answer for text and bytes, for every single character.
func TestCheckKeyOfEveryCharacter(t *testing.T) {
	for c := rune(0); c <= 0x110000; c++ {
		s := "k" + string(c)
		control := c < 0x20 || c >= 0x7f && c < 0xa0
		if err := CheckKey(s); (err != nil) != control {
			t.Fatalf("%U: %v", c, err)
		}
		if c < 0x1000 {
			if err := CheckKey([]byte(s)); (err != nil) != control {
				t.Fatalf("%U as bytes: %v", c, err)
			}
		}
	}
}

// A payload that is cut short anywhere is refused, and never as a fault of one field.
func TestEveryCutPayloadIsFatal(t *testing.T) {
	for _, v := range readVectors(t, "requests.txt") {
		p := v.payload()
		for n := range len(p) {
			var q Request
			if err, ok := DecodeRequest(p[:n], &q).(*FatalError); !ok || err.Code != BadFrame {
				t.Fatalf("%s cut to %d of %d bytes: %v", v.name, n, len(p), err)
			}
		}
	}
}

var tableRow = regexp.MustCompile(`^\| (\d+) \| ([a-z_-]+) \|`)

// The tables of PROTOCOL.md have the same numbers as the code.
func TestSpecificationHasTheCodesNumbers(t *testing.T) {
	text, err := os.ReadFile("PROTOCOL.md")
	must(t, err)
	spec := map[string]map[string]int{} // section → name → number
	section := ""
	for line := range strings.Lines(string(text)) {
		if s, ok := strings.CutPrefix(line, "### "); ok {
			section = strings.TrimSpace(s)
		}
		if m := tableRow.FindStringSubmatch(line); m != nil {
			if spec[section] == nil {
				spec[section] = map[string]int{}
			}
			n, _ := strconv.Atoi(m[1])
			spec[section][m[2]] = n
		}
	}
	code := constants(t)
	for section, prefixes := range map[string]string{"Operations": "Op", "Pushes": "Event"} {
		sameNumbers(t, section, spec[section], code[prefixes])
	}
	names := map[string]int{}
	for c := range codeNames {
		names[Code(c).String()] = c
	}
	sameNumbers(t, "Codes of replies", spec["Codes of replies"], names)
	reasons := map[string]int{}
	for r := 1; r < len(reasonNames); r++ {
		reasons[Reason(r).String()] = r
	}
	sameNumbers(t, "Reasons of lost", spec["Reasons of lost"], reasons)
}

func sameNumbers(t *testing.T, section string, spec, code map[string]int) {
	t.Helper()
	if len(code) == 0 || len(spec) != len(code) {
		t.Errorf("%s: %d in the specification, %d in the code", section, len(spec), len(code))
	}
	for name, n := range code {
		if got, ok := spec[name]; !ok || got != n {
			t.Errorf("%s: %s is %d in the code, %d in the specification (there: %v)", section,
				name, n, got, ok)
		}
	}
}

var camel = regexp.MustCompile(`([a-z])([A-Z])`)

// constants reads the Op… and Event… constants of codes.go by their names.
func constants(t *testing.T) map[string]map[string]int {
	f, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	must(t, err)
	all := map[string]map[string]int{"Op": {}, "Event": {}}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); ok && all[typ.Name] != nil {
			name := camel.ReplaceAllString(strings.TrimPrefix(v.Names[0].Name, typ.Name), "$1-$2")
			number, err := strconv.Atoi(v.Values[0].(*ast.BasicLit).Value)
			must(t, err)
			all[typ.Name][strings.ToLower(name)] = number
		}
		return true
	})
	return all
}

func BenchmarkDecodeAcquire(b *testing.B) {
	p := AppendRequest(nil, &Request{Op: OpAcquire, ID: 12345, Key: []byte("order:42"), Owner: 7,
		Wait: -1, TTL: 30000})[HeaderLen:]
	var q Request
	b.ReportAllocs()
	for b.Loop() {
		if err := DecodeRequest(p, &q); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeGrant(b *testing.B) {
	g := Grant{Fence: 1795000000000000 << 10, Left: 29698, Deadline: 1234597890, Count: 1}
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendGrant(buf[:0], 12345, &g)
	}
}

// The worked example of PROTOCOL.md consists of real frames.
func TestSpecificationExampleDecodes(t *testing.T) {
	text, err := os.ReadFile("PROTOCOL.md")
	must(t, err)
	frames := 0
	for line := range strings.Lines(string(text)) {
		m := exampleLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		frames++
		frame, err := hex.DecodeString(strings.ReplaceAll(m[2], " ", ""))
		must(t, err)
		p := cutOne(t, frame)
		if m[1] == "C" {
			var q Request
			must(t, DecodeRequest(p, &q))
			if got := AppendRequest(nil, &q); !bytes.Equal(got, frame) {
				t.Errorf("%s: encoded anew as %x", line, got)
			}
			continue
		}
		msg, err := DecodeMessage(p)
		must(t, err)
		if msg.ID == 0 {
			_, err = push(&msg)
		} else {
			_, err = read(&msg, []Op{1: OpHello, 2: OpAcquire, 3: OpRelease}[msg.ID])
		}
		must(t, err)
	}
	if frames != 7 {
		t.Errorf("%d frames", frames)
	}
}

var exampleLine = regexp.MustCompile(`^    ([CD]) ([0-9a-f ]+)$`)
