package upstream

import (
	"crypto/rand"
	"encoding/base64"
)

// NewInstance makes an instance id, the part of a Store's tokens that nobody
// else's have: 16 random bytes in 22 characters.
func NewInstance() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// ValidInstance says whether id could be one.
func ValidInstance(id string) bool {
	b, err := base64.RawURLEncoding.DecodeString(id)
	return err == nil && len(b) == 16
}
