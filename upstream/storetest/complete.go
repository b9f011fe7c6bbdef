package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// Complete checks that a hand-written snapshot is complete. Each field of the original, and of the
// types in it, must be in the snapshot and restored from it, or be listed as left out with the
// reason.
type Complete struct {
	// Root is a pointer to the original, which must have every kind of state.
	Root any
	// Snapshot returns a snapshot of Root without changing Root.
	Snapshot func() ([]byte, error)
	// Again restores a copy from snapshot and returns the snapshot of the copy, or an error.
	Again func(snapshot []byte) (again []byte, _ error)

	// LeftOut has the fields that the snapshot omits, as "package.type.field", with the reasons.
	// The keys of a map are "package.type.field (keys)".
	LeftOut map[string]string
	// Names has the fields by which the snapshot refers to things. It has them, but none can be
	// changed alone.
	Names map[string]bool
	// Another returns another value for a field that is an interface, but not an error. It is nil if
	// there is no such field.
	Another func() any
}

// walk visits every field and changes one at a time.
type walk struct {
	Complete
	t       testing.TB
	base    []byte
	seen    map[uintptr]bool
	tries   map[string]int
	encoded map[string]bool
	puts    []func() // put changed copies of map entries into their maps, the outermost first
}

// maxTries is the limit of instances of one field that are changed. For most fields the first one
// is enough.
const maxTries = 24

// Check fails for each field that is neither in the snapshot nor left out.
func (c Complete) Check(t testing.TB) {
	t.Helper()
	w := &walk{Complete: c, t: t, seen: make(map[uintptr]bool), tries: make(map[string]int),
		encoded: make(map[string]bool)}
	var wrong string
	if w.base, wrong = w.snapshot(); wrong != "" {
		t.Fatal(wrong)
	}
	root := reflect.ValueOf(c.Root)
	w.visit(root, typeName(root.Type().Elem()))
	if again, _ := w.snapshot(); !bytes.Equal(again, w.base) {
		t.Fatal("the walk has changed the original")
	}
	known := make(map[string]bool)
	var missing []string
	w.required(root.Type(), make(map[reflect.Type]bool), func(name string, leaf bool) {
		known[name] = true
		if leaf && !w.encoded[name] && !c.Names[name] {
			missing = append(missing, fmt.Sprintf("%s (changed %d times)", name, w.tries[name]))
		}
	})
	slices.Sort(missing)
	for _, name := range missing {
		t.Errorf("%s is neither in the snapshot nor listed as left out", name)
	}
	for name := range c.LeftOut {
		if !known[name] {
			t.Errorf("%s is listed as left out, and does not exist", name)
		}
	}
}

// keys follows the name of a map field in the name of the map's keys.
const keys = " (keys)"

func (w *walk) visit(v reflect.Value, name string) {
	switch t := v.Type(); t.Kind() {
	case reflect.Pointer:
		if v.IsNil() || w.seen[v.Pointer()] {
			return
		}
		w.seen[v.Pointer()] = true
		w.visit(v.Elem(), name)
	case reflect.Struct:
		w.structure(v, name)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if w.visit(v.Index(i), name); isScalar(t.Elem()) && w.encoded[name] {
				return
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			w.entry(v, k, name)
		}
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
	default:
		w.try(v, name)
	}
}

// entry visits an entry of a map. An entry cannot be changed in place, so entry changes a copy,
// which then replaces the entry.
func (w *walk) entry(m, key reflect.Value, name string) {
	value := reflect.New(m.Type().Elem()).Elem()
	value.Set(m.MapIndex(key))
	at := reflect.New(m.Type().Key()).Elem()
	at.Set(key)
	is := reflect.New(m.Type().Key()).Elem() // the key in the map
	is.Set(key)
	var other reflect.Value // the entry that had that key before; the zero Value if there was none
	w.puts = append(w.puts, func() {
		if is.Interface() != at.Interface() {
			m.SetMapIndex(is, other)
			other = m.MapIndex(at)
			is.Set(at)
		}
		m.SetMapIndex(at, value)
	})
	w.visit(value, name)
	if _, left := w.LeftOut[name+keys]; !left {
		w.visit(at, name+keys)
	}
	w.puts = w.puts[:len(w.puts)-1]
}

func (w *walk) structure(v reflect.Value, name string) {
	t := v.Type()
	switch {
	case t.PkgPath() == "sync", t.NumField() == 0:
		return
	case isAtomicPointer(t):
		if p := v.Addr().MethodByName("Load").Call(nil)[0]; !p.IsNil() {
			w.visit(p.Elem(), name)
		}
		return
	case t.PkgPath() == "sync/atomic":
		w.visit(writable(v.FieldByName("v")), name)
		return
	case !ours(t):
		w.foreign(v)
		return
	}
	for i := range t.NumField() {
		field := fieldName(t, i)
		if _, ok := w.LeftOut[field]; !ok && !w.Names[field] {
			w.visit(writable(v.Field(i)), field)
		}
	}
}

// foreign visits the entries of a library's cache.
func (w *walk) foreign(v reflect.Value) {
	values := v.Addr().MethodByName("Values")
	if !values.IsValid() {
		w.t.Fatalf("the check cannot visit values of type %v", v.Type())
	}
	for _, x := range values.Call(nil) {
		w.visit(x, "")
	}
}

// writable returns v as a value that can be set even if it is an unexported field.
func writable(v reflect.Value) reflect.Value {
	if !v.CanAddr() {
		return v
	}
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}

func ours(t reflect.Type) bool {
	return strings.HasPrefix(t.PkgPath(), "github.com/locksidecar/locksidecar")
}

func isAtomicPointer(t reflect.Type) bool {
	return t.PkgPath() == "sync/atomic" && strings.HasPrefix(t.Name(), "Pointer[")
}

func typeName(t reflect.Type) string {
	name, _, _ := strings.Cut(t.String(), "[") // of a generic one, without its parameters
	return name
}

func fieldName(t reflect.Type, i int) string { return typeName(t) + "." + t.Field(i).Name }

func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Struct, reflect.Slice, reflect.Array, reflect.Map, reflect.Func,
		reflect.Chan, reflect.UnsafePointer:
		return false
	}
	return true
}

// try changes v, makes a snapshot, and restores v.
func (w *walk) try(v reflect.Value, name string) {
	if w.encoded[name] || w.tries[name] >= maxTries || !v.CanSet() {
		return
	}
	w.tries[name]++
	was := reflect.New(v.Type()).Elem()
	was.Set(v)
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() ^ 1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() ^ 1)
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Interface:
		switch {
		case v.Type() == reflect.TypeFor[error]():
			v.Set(reflect.ValueOf(errors.New("another")))
		case w.Another != nil:
			v.Set(reflect.ValueOf(w.Another()))
		default:
			w.t.Fatalf("%s is an interface: there is no other value", name)
		}
	default:
		w.t.Fatalf("%s: %v", name, v.Kind())
	}
	w.replace()
	snapshot, wrong := w.snapshot()
	v.Set(was)
	w.replace()
	if wrong != "" { // the changed field contradicts others that the snapshot uses
		w.encoded[name] = true
		return
	}
	if bytes.Equal(snapshot, w.base) {
		return
	}
	w.encoded[name] = true
	again, err := w.Again(snapshot)
	if err != nil {
		return // the changed field contradicts others of the snapshot
	}
	if !bytes.Equal(again, snapshot) {
		w.t.Errorf("%s is in the snapshot, but the copy has another value", name)
	}
}

// replace puts the copies of map entries that are visited into their maps.
func (w *walk) replace() {
	for _, put := range slices.Backward(w.puts) {
		put()
	}
}

func (w *walk) snapshot() (snapshot []byte, wrong string) {
	defer func() {
		if r := recover(); r != nil {
			wrong = fmt.Sprint(r)
		}
	}()
	snapshot, err := w.Snapshot()
	if err != nil {
		wrong = err.Error()
	}
	return snapshot, wrong
}

// required calls add for every field of a type and of the types in it. leaf marks fields with a
// scalar value. The keys of a map have a name of their own.
func (w *walk) required(
	t reflect.Type, seen map[reflect.Type]bool, add func(name string, leaf bool),
) {
	switch t.Kind() {
	case reflect.Map:
		w.required(t.Key(), seen, add)
		w.required(t.Elem(), seen, add)
		return
	case reflect.Pointer, reflect.Slice, reflect.Array:
		w.required(t.Elem(), seen, add)
		return
	case reflect.Struct:
	default:
		return
	}
	if isAtomicPointer(t) {
		load, _ := reflect.PointerTo(t).MethodByName("Load")
		w.required(load.Type.Out(0), seen, add)
		return
	}
	if !ours(t) || seen[t] {
		return
	}
	seen[t] = true
	for i := range t.NumField() {
		name, of := fieldName(t, i), t.Field(i).Type
		_, left := w.LeftOut[name]
		add(name, !left && isLeaf(of))
		if left {
			continue
		}
		if of.Kind() == reflect.Map {
			_, left := w.LeftOut[name+keys]
			add(name+keys, !left && isLeaf(of.Key()))
		}
		w.required(of, seen, add)
	}
}

func isLeaf(t reflect.Type) bool {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Array || t.Kind() == reflect.Pointer ||
		t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return isScalar(t) || t.PkgPath() == "sync/atomic" && !isAtomicPointer(t)
}
