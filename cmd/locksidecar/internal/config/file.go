package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is more than any configuration needs.
const maxFile = 1 << 20

// readFile takes in a YAML file and returns all its faults, each with its line.
// It reads nodes and not a struct, so that a value is the text that stands there:
// a mode is octal, a duration has a unit, and every fault knows its line.
func (c *Config) readFile(path string) []error {
	f, err := os.Open(path)
	if err != nil {
		return []error{fmt.Errorf("read configuration: %w", err)}
	}
	defer f.Close()
	r := fileReader{c: c, path: path, seen: map[string]int{}}
	dec := yaml.NewDecoder(io.LimitReader(f, maxFile))
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

// mapping reads what stands under the level prefix, which ends in a dot or is
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
	r.fault(key, "unknown field %q; known here: %s", path, strings.Join(fields(prefix), ", "))
}

func (r *fileReader) scalar(s *Setting, n *yaml.Node) {
	switch {
	case n.Kind != yaml.ScalarNode:
		r.fault(n, "%s has to be one value", s.Path)
	case n.Tag == "!!null":
		r.fault(n, "%s has no value", s.Path)
	default:
		at := fmt.Sprintf("%s:%d", r.path, n.Line)
		if err := r.c.set(s, n.Value, at); err != nil {
			r.faults = append(r.faults, fmt.Errorf("%s: %w", s.Path, err))
		}
	}
}

// fields lists what may stand under a level.
func fields(prefix string) (names []string) {
	for i := range settings {
		if rest, ok := strings.CutPrefix(settings[i].Path, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
