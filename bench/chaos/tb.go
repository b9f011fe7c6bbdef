package chaos

import (
	"context"
	"fmt"
	"io"
	"testing"
)

// tb lets a program run servers that are made for tests. What would fail a test ends the cell.
type tb struct {
	testing.TB // only the methods below are used
	log        io.Writer
	cleanups   []func()
}

// broken is the panic value of a cell that could not be run.
type broken struct{ error }

func (*tb) Helper()                     {}
func (*tb) Name() string                { return "chaos" }
func (*tb) Context() context.Context    { return context.Background() }
func (t *tb) Cleanup(f func())          { t.cleanups = append(t.cleanups, f) }
func (t *tb) Log(args ...any)           { fmt.Fprintln(t.log, args...) }
func (t *tb) Logf(f string, a ...any)   { fmt.Fprintf(t.log, f+"\n", a...) }
func (t *tb) Error(args ...any)         { t.Log(args...) }
func (t *tb) Errorf(f string, a ...any) { t.Logf(f, a...) }
func (*tb) Fatal(args ...any)           { panic(broken{fmt.Errorf("%s", fmt.Sprint(args...))}) }
func (*tb) Fatalf(f string, a ...any)   { panic(broken{fmt.Errorf(f, a...)}) }

// end runs the cleanups, the last one first.
func (t *tb) end() {
	for len(t.cleanups) > 0 {
		f := t.cleanups[len(t.cleanups)-1]
		t.cleanups = t.cleanups[:len(t.cleanups)-1]
		f()
	}
}
