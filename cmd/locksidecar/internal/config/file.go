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
)

// maxFile is larger than any configuration needs.
const maxFile = 1 << 20

// readFile reads a YAML file and returns all its faults, each with its line. It reads YAML nodes
// instead of a struct, so that it has the original text of each value and the line of each fault.
// The text matters, because a mode is octal and a duration has a unit.
func (c *Config) readFile(path string) []error {
	f, err := os.Open(path)
	if err != nil {
		return []error{fmt.Errorf("read configuration: %w", err)}
	}
	defer f.Close()
	r := fileReader{c: c, path: path}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return []error{fmt.Errorf("read configuration: %w", err)}
	}
	if len(text) > maxFile {
		return []error{fmt.Errorf("%s: the file is larger than %d bytes, the limit for a "+
			"configuration",
			path, maxFile)}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil // the file has only comments: all defaults
	case err != nil:
		text := strings.TrimPrefix(err.Error(), "yaml: ")
		return []error{fmt.Errorf("%s: %s%s", path, text, yamlAdvice(text))}
	}
	r.level("", doc.Content[0])
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		r.fault(&more, "a second document; there can be only one")
	}
	return r.faults
}

// yamlAdvice returns what to add to an error of the YAML library that does not say what to do.
func yamlAdvice(fault string) string {
	switch {
	case strings.Contains(fault, "mapping values are not allowed"):
		return "; a value that ends with a colon needs quotation marks, as in \"memory:\", " +
			"and fields of one level need the same indentation"
	case strings.Contains(fault, "cannot start any token"):
		return "; indent with spaces, not with tabs"
	}
	return ""
}

type fileReader struct {
	c      *Config
	path   string
	faults []error
}

func (r *fileReader) fault(n *yaml.Node, format string, a ...any) {
	r.faults = append(r.faults, fmt.Errorf("%s:%d: %s", r.path, n.Line, fmt.Sprintf(format, a...)))
}

// unknown adds the fault of an unknown field. It names the field whose flag has this name, the
// known field with the nearest name, or else all of them.
func (r *fileReader) unknown(key *yaml.Node, path string, known []string) {
	if group, field, dotted := strings.Cut(key.Value, "."); dotted && slices.Contains(known, group) {
		r.fault(key, "unknown field %q; write %s: {%s: …}", path, group, field)
		return
	}
	near := nearest.Of(key.Value, known)
	if group := pathOfFlag(path); group != "" {
		near = group
	}
	if near != "" {
		r.fault(key, "unknown field %q; did you mean %q?", path, near)
		return
	}
	r.fault(key, "unknown field %q; known here: %s", path, strings.Join(known, ", "))
}

// each calls one for each field of n, which is the value of the field path. If n is not a map, the
// fault says that it has to be must.
func (r *fileReader) each(
	path string, n *yaml.Node, must string, one func(path string, key, value *yaml.Node),
) {
	prefix := path + "."
	if path == "" {
		path, prefix = "the file", ""
	}
	switch {
	case n.Kind == yaml.AliasNode:
		r.fault(n, "aliases are not understood here")
		return
	case n.Tag == "!!null":
		return // only comments
	case n.Kind != yaml.MappingNode:
		r.fault(n, "%s has to be %s", path, must)
		return
	}
	seen := make(map[string]int) // line of each field
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if !isText(key) {
			r.fault(key, "the name of a field has to be text")
			continue
		}
		path := prefix + key.Value
		if line, twice := seen[key.Value]; twice {
			r.fault(key, "%s is set on line %d already", path, line)
			continue
		}
		seen[key.Value] = key.Line
		one(path, key, n.Content[i+1])
	}
}

// named describes the value of a field whose own fields have names that the user chooses.
const named = "names with fields under each"

// fieldsAs describes the value of a field that has the given fields.
func fieldsAs(known []string) string {
	return fmt.Sprintf("fields with values, as in %q", known[0]+": …")
}

// level reads the settings under a path.
func (r *fileReader) level(path string, n *yaml.Node) {
	r.each(path, n, fieldsAs(fieldsUnder(path)), r.field)
}

func (r *fileReader) field(path string, key, value *yaml.Node) {
	parent := strings.TrimSuffix(strings.TrimSuffix(path, key.Value), ".")
	// this also refuses an empty name, or one with dots
	if !slices.Contains(fieldsUnder(parent), key.Value) {
		r.unknown(key, path, fieldsUnder(parent))
		return
	}
	switch path {
	case "stores":
		r.each(path, value, named, r.store)
		return
	case "namespaces":
		r.each(path, value, named, r.namespace)
		return
	case "classes":
		r.each(path, value, named, r.class)
		return
	}
	if s := find(settings, path); s != nil {
		r.value(path, value, s.isList(), func(text string) error { return s.set(r.c, text) })
		return
	}
	r.level(path, value)
}

// value reads the value of a field and calls set with its text.
func (r *fileReader) value(path string, n *yaml.Node, list bool, set func(text string) error) {
	text, ok := scalarOrList(n)
	switch {
	case n.Tag == "!!null":
		r.fault(n, "%s has no value", path)
	case !ok || n.Kind == yaml.SequenceNode && !list:
		r.fault(n, "%s has to be one value", path)
	default:
		r.c.from[path] = fmt.Sprintf("%s:%d", r.path, n.Line)
		if err := set(text); err != nil {
			r.faults = append(r.faults, fmt.Errorf("%s: %s: %w", path, r.c.from[path], err))
		}
	}
}

func (r *fileReader) store(path string, key, value *yaml.Node) {
	name := key.Value
	if name == "" || name == DefaultStore || strings.ContainsAny(name, "/\\.\x00") {
		r.fault(key, "a store cannot have the name %q", name)
		return
	}
	s := &StoreSettings{Name: name}
	r.c.Stores = append(r.c.Stores, s)
	before := len(r.faults)
	readFields(r, path, value, storeFields, func(f *Field[StoreSettings], text string) error {
		return f.set(s, text)
	})
	s.faulty = len(r.faults) > before
}

func (r *fileReader) namespace(_ string, key, value *yaml.Node) {
	n := &Namespace{Prefix: key.Value}
	path := NamespacePath(n.Prefix)
	r.c.from[path] = fmt.Sprintf("%s:%d", r.path, key.Line)
	r.c.Namespaces = append(r.c.Namespaces, n)
	readFields(r, path, value, spaceFields, func(f *Field[Namespace], text string) error {
		n.set = append(n.set, assignment{f, text})
		return nil
	})
}

func (r *fileReader) class(path string, key, value *yaml.Node) {
	text, ok := scalarOrList(value)
	if !ok {
		r.fault(value, "%s has to be a prefix of keys, or a list of them", path)
		return
	}
	r.c.from[path] = fmt.Sprintf("%s:%d", r.path, value.Line)
	for prefix := range strings.SplitSeq(text, ",") {
		r.c.Classes = append(r.c.Classes, Class{key.Value, prefix})
	}
}

// readFields reads the fields of a store or a namespace.
func readFields[T any](
	r *fileReader, path string, n *yaml.Node, fields []Field[T],
	set func(f *Field[T], text string) error,
) {
	var known []string
	for _, f := range fields {
		known = append(known, f.Path)
	}
	r.each(path, n, fieldsAs(known), func(path string, key, value *yaml.Node) {
		f := find(fields, key.Value)
		if f == nil {
			r.unknown(key, path, known)
			return
		}
		r.value(path, value, f.isList(), func(text string) error { return set(f, text) })
	})
}

// isText reports whether n.Value is the text of n. It is false for an alias, and for a key that is
// a list.
func isText(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag != "!!binary" }

// scalarOrList returns the text of a value. Commas separate the values of a list.
func scalarOrList(n *yaml.Node) (string, bool) {
	switch {
	case isText(n) && n.Tag != "!!null":
		return n.Value, true
	case n.Kind == yaml.SequenceNode:
		var all []string
		for _, e := range n.Content {
			if !isText(e) || e.Tag == "!!null" {
				return "", false
			}
			all = append(all, e.Value)
		}
		return strings.Join(all, ","), true
	}
	return "", false
}

// fieldsUnder returns the names of the fields under a path; nil if there are none.
func fieldsUnder(path string) (names []string) {
	prefix := path + "."
	if path == "" {
		prefix = ""
	}
	for i := range settings {
		if rest, ok := strings.CutPrefix(settings[i].Path, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if path == "" {
		names = append(names, "stores", "namespaces", "classes")
	}
	return names
}
