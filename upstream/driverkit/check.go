package driverkit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// CheckOp reports why no store can carry out op.
func CheckOp(op *upstream.Op) error {
	switch {
	case op.Kind < cache.OpTry || op.Kind > cache.OpPeek:
		return fmt.Errorf("operation %d is unknown", op.Kind)
	case op.Mode == cache.Permit && op.Kind == cache.OpDowngrade:
		return errors.New("a permit of a semaphore cannot be downgraded")
	case op.Mode == cache.Permit && op.Kind <= cache.OpJoin && op.Limit == 0:
		return errors.New("a semaphore has at least one permit")
	}
	return nil
}

// CheckFloor reports whether op's fence floor is out of range, for stores whose bases a floor can
// raise.
func CheckFloor(op *upstream.Op) error {
	if op.Floor > cache.MaxBase-upstream.MaxBatch {
		return fmt.Errorf("fence floor %d is out of range", op.Floor)
	}
	return nil
}

// Version is a server's version: major, minor and patch.
type Version [3]int

// ParseVersion reads a version such as "8.0.33-log". ok is false if the major or minor version is
// no number. The patch level is 0 if there is none.
func ParseVersion(s string) (v Version, ok bool) {
	s, _, _ = strings.Cut(s, "-")
	parts := strings.SplitN(s, ".", 3)
	if len(parts) < 2 {
		return v, false
	}
	var err1, err2 error
	v[0], err1 = strconv.Atoi(parts[0])
	v[1], err2 = strconv.Atoi(parts[1])
	if len(parts) == 3 {
		end := strings.IndexFunc(parts[2]+".", func(r rune) bool { return r < '0' || r > '9' })
		v[2], _ = strconv.Atoi(parts[2][:end])
	}
	return v, err1 == nil && err2 == nil
}

// Before reports whether v is earlier than other.
func (v Version) Before(other Version) bool {
	for i := range v {
		if v[i] != other[i] {
			return v[i] < other[i]
		}
	}
	return false
}
