package protocol

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vector is one line of a file in vectors/.
type vector struct {
	name   string
	frame  []byte
	fields map[string]any
}

func (v *vector) payload() []byte { return v.frame[HeaderLen:] }

// num returns a field as a number; 0 if the field is missing.
func (v *vector) num(name string) int64 { return number(v.fields[name]) }

func (v *vector) uint(name string) uint64 { return uint64(v.num(name)) }

func (v *vector) str(name string) string {
	s, _ := v.fields[name].(string)
	return s
}

func (v *vector) list(name string) []any {
	l, _ := v.fields[name].([]any)
	return l
}

func number(x any) int64 {
	n, ok := x.(json.Number)
	if !ok {
		return 0
	}
	i, err := n.Int64()
	if err != nil {
		panic(err)
	}
	return i
}

func readVectors(t testing.TB, file string) []vector {
	t.Helper()
	f, err := os.Open(filepath.Join("vectors", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var vs []vector
	seen := map[string]bool{}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		cols := strings.Split(line, "\t")
		if len(cols) != 3 || seen[cols[0]] {
			t.Fatalf("%s: bad or doubled line %.60q", file, line)
		}
		seen[cols[0]] = true
		v := vector{name: cols[0]}
		if v.frame, err = hex.DecodeString(strings.ReplaceAll(cols[1], " ", "")); err != nil {
			t.Fatalf("%s: %s: %v", file, v.name, err)
		}
		d := json.NewDecoder(strings.NewReader(cols[2]))
		d.UseNumber()
		if err := d.Decode(&v.fields); err != nil {
			t.Fatalf("%s: %s: %v", file, v.name, err)
		}
		vs = append(vs, v)
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	if len(vs) < 10 {
		t.Fatalf("%s has only %d cases", file, len(vs))
	}
	return vs
}

// eachVector runs one subtest per line.
func eachVector(t *testing.T, file string, run func(*testing.T, *vector)) {
	for _, v := range readVectors(t, file) {
		t.Run(strings.TrimSuffix(file, ".txt")+"/"+v.name, func(t *testing.T) { run(t, &v) })
	}
}

// cutOne returns the payload of a stream that is exactly one frame.
func cutOne(t *testing.T, frame []byte) []byte {
	t.Helper()
	p, rest, ok, err := Cut(frame, DefaultMaxFrame)
	if err != nil || !ok || len(rest) != 0 {
		t.Fatalf("Cut: ok %v, %d bytes behind, %v", ok, len(rest), err)
	}
	return p
}

// request builds the request that a vector's fields describe.
func (v *vector) request() Request {
	q := Request{Op: Op(v.num("op")), ID: v.uint("id"), Owner: v.uint("owner"),
		Mode: Mode(v.num("mode")),
		Wait: v.num("wait"), TTL: v.uint("ttl"), Flags: v.uint("flags"), Fence: v.uint("fence"),
		Target: v.uint("target"), MinVersion: v.uint("min_version"), MaxVersion: v.uint("max_version"),
		Limit: v.uint("limit"), Permits: v.uint("permits"), Keep: v.uint("keep")}
	for name, p := range map[string]*[]byte{"key": &q.Key, "name": &q.Name, "label": &q.Label,
		"prefix": &q.Prefix, "after": &q.After, "traceparent": &q.Trace} {
		if s, ok := v.fields[name].(string); ok {
			*p = []byte(s)
		}
	}
	for _, k := range v.list("keys") {
		q.Keys = append(q.Keys, []byte(k.(string)))
	}
	for _, h := range v.list("holds") {
		pair := h.([]any)
		q.Keys = append(q.Keys, []byte(pair[0].(string)))
		q.Fences = append(q.Fences, uint64(number(pair[1])))
	}
	return q
}

// same compares requests. It treats an empty text and a missing one as equal.
func same(t *testing.T, got, want Request) {
	t.Helper()
	empty := cmp.Transformer("empty", func(b []byte) string { return string(b) })
	list := cmp.Transformer("list", func(b [][]byte) string {
		return string(bytes.Join(b, []byte{0}))
	})
	fences := cmp.Transformer("fences", func(f []uint64) []uint64 {
		if len(f) == 0 {
			return nil
		}
		return append([]uint64{}, f...)
	})
	opts := cmp.Options{
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().Type().String() == "[]uint8" }, empty),
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().Type().String() == "[][]uint8" }, list),
		cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Fences" && p.Last().String() == ".Fences" }, fences),
	}
	if d := cmp.Diff(want, got, opts); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestVectorsRequests(t *testing.T) {
	eachVector(t, "requests.txt", func(t *testing.T, v *vector) {
		want := v.request()
		if got := AppendRequest(nil, &want); !bytes.Equal(got, v.frame) {
			t.Errorf("encode\n got %x\nwant %x", got, v.frame)
		}
		decodesTo(t, v)
		crossCheck(t, v.payload(), true)
	})
	eachVector(t, "requests-accept.txt", func(t *testing.T, v *vector) {
		decodesTo(t, v)
		crossCheck(t, v.payload(), false)
	})
}

func decodesTo(t *testing.T, v *vector) {
	t.Helper()
	var q Request
	if err := DecodeRequest(cutOne(t, v.frame), &q); err != nil {
		t.Fatal(err)
	}
	same(t, q, v.request())
}

func TestVectorsBadRequests(t *testing.T) {
	eachVector(t, "bad-requests.txt", func(t *testing.T, v *vector) {
		p, rest, ok, err := Cut(v.frame, DefaultMaxFrame)
		if err != nil {
			if v.str("fault") != "fatal" || Code(v.num("code")) != BadFrame {
				t.Fatalf("Cut: %v", err)
			}
			return
		}
		if !ok || len(rest) != 0 {
			t.Fatalf("not one whole frame: ok %v, %d bytes behind", ok, len(rest))
		}
		var q Request
		switch err := DecodeRequest(p, &q).(type) {
		case *FatalError:
			if v.str("fault") != "fatal" || err.Code != Code(v.num("code")) {
				t.Errorf("fatal with %v (%v), want %v", err.Code, err, v.fields)
			}
		case *FieldError:
			if q.Op == OpHello { // the codec reports a FieldError, but the session makes it fatal
				if v.str("fault") != "fatal" || Code(v.num("code")) != BadFrame {
					t.Errorf("hello: %v, want %v", err, v.fields)
				}
				return
			}
			if v.str("fault") != "answered" || err.Code != Code(v.num("code")) || q.ID != v.uint("id") {
				t.Errorf("answered with %v under %d (%v), want %v", err.Code, q.ID, err, v.fields)
			}
		default:
			t.Errorf("error %v, want %v", err, v.fields)
		}
	})
}
