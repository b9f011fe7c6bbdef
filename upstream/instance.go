package upstream

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
)

// InstanceOr returns id, or a new instance id if it is empty. It returns an error if id is not an
// instance id.
func InstanceOr(id string) (string, error) {
	if id == "" {
		return NewInstance(), nil
	}
	if !ValidInstance(id) {
		return "", fmt.Errorf("%q is not an instance id", id)
	}
	return id, nil
}

// NewInstance returns a new instance id, the part of a Store's tokens that no other Store's
// tokens have: 16 random bytes in 22 characters.
func NewInstance() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// ValidInstance reports whether id has the form of an instance id.
func ValidInstance(id string) bool {
	b, err := base64.RawURLEncoding.DecodeString(id)
	return err == nil && len(b) == 16
}
