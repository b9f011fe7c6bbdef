package main

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func containerfile(name string, data []byte) error {
	tree, err := parser.Parse(bytes.NewReader(data))
	if err != nil {
		return err
	}
	var faults []error
	for _, w := range tree.Warnings {
		faults = append(faults, errors.New(w.Short))
	}
	stages, _, err := instructions.Parse(tree.AST, linter.New(&linter.Config{
		Warn: func(rule, _, _, message string, _ []parser.Range) {
			faults = append(faults, fmt.Errorf("%s: %s", rule, message))
		},
	}))
	if err != nil {
		return err
	}
	last := stages[len(stages)-1]
	var user, entry bool
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = c.User != "root" && c.User != "0"
		case *instructions.EntrypointCommand:
			entry = !c.PrependShell // there is no shell in it
		}
	}
	if !user || !entry {
		faults = append(faults, errors.New("it needs a user that is not root and an entry point that is no shell's"))
	}
	fmt.Println(name, len(stages), "stages, the last from", last.BaseName)
	return errors.Join(faults...)
}
