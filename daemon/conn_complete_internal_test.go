package daemon

import (
	"reflect"
	"testing"
)

// Every field of a connection is either passed on or made again by the process that takes over.
func TestEveryFieldOfAConnectionIsAccountedFor(t *testing.T) {
	fields := map[string]string{
		"s": "passed on", "input": "passed on", "unsent": "passed on", "sock": "passed on",
		"peer":   "passed on",
		"closed": "follows from the session", "killed": "follows from the session",
		"writing": "follows from unsent",
		"d":       "new", "handling": "new", "mu": "new", "reader": "new", "reaper": "new",
		"writer": "new", "kill": "new",
		"gone": "new", "goneOnce": "new", "hello": "starts again", "again": "starts again",
		"turn": "starts again",
	}
	conn := reflect.TypeFor[conn]()
	for i := range conn.NumField() {
		if name := conn.Field(i).Name; fields[name] == "" {
			t.Errorf("conn.%s is not accounted for", name)
		}
		delete(fields, conn.Field(i).Name)
	}
	for name := range fields {
		t.Errorf("conn has no %s", name)
	}
}
