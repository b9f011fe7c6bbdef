package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/locksidecar/locksidecar/upstream/nearest"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// maxFile is larger than any configuration needs.
const maxFile = 1 << 20

// readFile reads a YAML file and returns all its faults, each with its line. It reads
// nodes and not a struct, so that a value is the original text: a mode is octal, a
// duration has a unit, and every fault has a line.
func (c *Config) readFile(path string) []error {
	f, err := os.Open(path)
	if err != nil {
		return []error{fmt.Errorf("read configuration: %w", err)}
	}
	defer f.Close()
	r := fileReader{c: c, path: path, seen: map[string]int{}}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return []error{fmt.Errorf("read configuration: %w", err)}
	}
	if len(text) > maxFile {
		return []error{fmt.Errorf("%s: the file is larger than %d bytes, the limit for a configuration", path, maxFile)}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil // nothing but comments: the defaults
	case err != nil:
		return []error{fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))}
	}
	r.mapping("", doc.Content[0])
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		r.fault(&more, "a second document; there can be only one")
	}
	return r.faults
}

type fileReader struct {
	c      *Config
	path   string
	seen   map[string]int // line of each setting
	faults []error
}

func (r *fileReader) fault(n *yaml.Node, format string, a ...any) {
	r.faults = append(r.faults, fmt.Errorf("%s:%d: %s", r.path, n.Line, fmt.Sprintf(format, a...)))
}

// unknown adds the fault of an unknown field. It names the known field with the nearest name, or else all of
// them.
func (r *fileReader) unknown(n *yaml.Node, path, name string, known []string) {
	if near := nearest.Of(name, known); near != "" {
		r.fault(n, "unknown field %q; did you mean %q?", path, near)
		return
	}
	r.fault(n, "unknown field %q; known here: %s", path, strings.Join(known, ", "))
}

// mapping reads the fields under the level prefix, which ends in a dot or is
// empty.
func (r *fileReader) mapping(prefix string, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		r.fault(n, "aliases are not understood here")
		return
	}
	if n.Tag == "!!null" {
		return // a level with nothing but comments under it
	}
	if n.Kind != yaml.MappingNode {
		what := "the file"
		if prefix != "" {
			what = strings.TrimSuffix(prefix, ".")
		}
		r.fault(n, "%s has to be fields with values, as in %q", what, fields(prefix)[0]+": …")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		r.field(prefix, n.Content[i], n.Content[i+1])
	}
}

func (r *fileReader) field(prefix string, key, value *yaml.Node) {
	path := prefix + key.Value
	switch path {
	case "stores":
		r.named(path, value, r.store)
		return
	case "namespaces":
		r.named(path, value, r.space)
		return
	case "classes":
		r.named(path, value, r.class)
		return
	}
	if line, twice := r.seen[path]; twice {
		r.fault(key, "%s is set on line %d already", path, line)
		return
	}
	r.seen[path] = key.Line
	for i := range settings {
		s := &settings[i]
		switch {
		case s.Path == path:
			r.scalar(s, value)
			return
		case strings.HasPrefix(s.Path, path+"."):
			r.mapping(path+".", value)
			return
		}
	}
	r.unknown(key, path, key.Value, fields(prefix))
}

func (r *fileReader) scalar(s *Setting, n *yaml.Node) {
	text, ok := scalarOrList(n)
	_, list := s.value(r.c).(*names)
	switch {
	case n.Tag == "!!null":
		r.fault(n, "%s has no value", s.Path)
	case !ok || n.Kind == yaml.SequenceNode && !list:
		r.fault(n, "%s has to be one value", s.Path)
	default:
		at := fmt.Sprintf("%s:%d", r.path, n.Line)
		if err := r.c.set(s, text, at); err != nil {
			r.faults = append(r.faults, fmt.Errorf("%s: %w", s.Path, err))
		}
	}
}

// named reads a level whose fields are names that the user chooses.
func (r *fileReader) named(level string, n *yaml.Node, one func(name string, key, value *yaml.Node)) {
	if n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.fault(n, "%s has to be names with fields under each", level)
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		path := level + "." + key.Value
		if line, twice := r.seen[path]; twice {
			r.fault(key, "%s is set on line %d already", path, line)
			continue
		}
		r.seen[path] = key.Line
		one(key.Value, key, n.Content[i+1])
	}
}

func (r *fileReader) store(name string, key, value *yaml.Node) {
	if name == "" || name == DefaultStore || strings.ContainsAny(name, "/\\.\x00") {
		r.fault(key, "a store cannot have the name %q", name)
		return
	}
	s := &Store{Name: name}
	r.c.Stores = append(r.c.Stores, s)
	before := len(r.faults)
	defer func() { s.faulty = len(r.faults) > before }()
	var known []string
	for _, f := range storeSettings {
		known = append(known, f.name)
	}
	r.values("stores."+name, value, known, func(field, text string) error {
		i := slices.Index(known, field)
		err := storeSettings[i].value(s).Set(text)
		if err != nil && field == "password" {
			text = "…"
		} else if field == "upstream" {
			text = storeurl.Redact(text)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		return nil
	})
}

func (r *fileReader) space(prefix string, key, value *yaml.Node) {
	n := &Namespace{Prefix: prefix}
	r.c.from[SpacePath(prefix)] = fmt.Sprintf("%s:%d", r.path, key.Line)
	r.c.Namespaces = append(r.c.Namespaces, n)
	r.values(SpacePath(prefix), value, spaceFields(), func(field, text string) error {
		n.set = append(n.set, assignment{spaceField(field), field, text})
		return nil
	})
}

func (r *fileReader) class(name string, _, value *yaml.Node) {
	text, ok := scalarOrList(value)
	if !ok {
		r.fault(value, "classes.%s has to be a prefix of keys, or a list of them", name)
		return
	}
	r.c.from["classes."+name] = fmt.Sprintf("%s:%d", r.path, value.Line)
	for prefix := range strings.SplitSeq(text, ",") {
		r.c.Classes = append(r.c.Classes, Class{name, prefix})
	}
}

// values reads the fields of one name.
func (r *fileReader) values(level string, n *yaml.Node, known []string, set func(field, text string) error) {
	if n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.fault(n, "%s has to be fields with values, as in %q", level, known[0]+": …")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		path := level + "." + key.Value
		line, twice := r.seen[path]
		text, ok := scalarOrList(value)
		switch {
		case !slices.Contains(known, key.Value):
			r.unknown(key, path, key.Value, known)
		case twice:
			r.fault(key, "%s is set on line %d already", path, line)
		case !ok || value.Kind == yaml.SequenceNode && key.Value != "users" && key.Value != "groups":
			r.fault(value, "%s has to be one value", path)
		default:
			r.seen[path] = key.Line
			r.c.from[path] = fmt.Sprintf("%s:%d", r.path, value.Line)
			if err := set(key.Value, text); err != nil {
				r.faults = append(r.faults, fmt.Errorf("%s: %s:%d: %w", path, r.path, value.Line, err))
			}
		}
	}
}

// scalarOrList returns the text of a value; the values of a list are separated by commas.
func scalarOrList(n *yaml.Node) (string, bool) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag != "!!null":
		return n.Value, true
	case n.Kind == yaml.SequenceNode:
		var all []string
		for _, e := range n.Content {
			if e.Kind != yaml.ScalarNode || e.Tag == "!!null" {
				return "", false
			}
			all = append(all, e.Value)
		}
		return strings.Join(all, ","), true
	}
	return "", false
}

// fields returns the names of the fields that a level may have.
func fields(prefix string) (names []string) {
	for i := range settings {
		if rest, ok := strings.CutPrefix(settings[i].Path, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if prefix == "" {
		names = append(names, "stores", "namespaces", "classes")
	}
	return names
}
