package cache

import (
	"encoding/binary"
	"errors"
)

// Coder writes a sequence of values, or reads it. The same calls in the same order do both, so that
// the writer and the reader cannot differ.
type Coder struct {
	B       []byte // the bytes that have been written, or are still to be read
	Reading bool
	Err     error // the first error
}

var errSnapshot = errors.New("snapshot is damaged")

// Fail records err, unless an earlier error is recorded.
func (c *Coder) Fail(err error) {
	if c.Err == nil {
		c.Err = err
	}
}

type integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Num writes or reads a number.
func Num[T integer](c *Coder, v *T) {
	if !c.Reading {
		c.B = binary.AppendVarint(c.B, int64(*v))
		return
	}
	x, n := binary.Varint(c.B)
	if n <= 0 || int64(T(x)) != x {
		c.Fail(errSnapshot)
		c.B, x, n = nil, 0, 0
	}
	*v, c.B = T(x), c.B[n:]
}

// Len writes or reads a number of elements. When it reads, a number that exceeds the bytes left is
// an error.
func (c *Coder) Len(n *int) {
	Num(c, n)
	if c.Reading && (*n < 0 || *n > len(c.B)) {
		c.Fail(errSnapshot)
		*n = 0
	}
}

// Bool writes or reads v.
func (c *Coder) Bool(v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	Num(c, &n)
	if c.Reading {
		*v = n != 0
	}
}

// String writes or reads v.
func (c *Coder) String(v *string) {
	n := len(*v)
	c.Len(&n)
	if !c.Reading {
		c.B = append(c.B, *v...)
		return
	}
	*v, c.B = string(c.B[:n]), c.B[n:]
}

// Bytes writes or reads v. When reading, v becomes a slice of B.
func (c *Coder) Bytes(v *[]byte) {
	n := len(*v)
	c.Len(&n)
	if !c.Reading {
		c.B = append(c.B, *v...)
		return
	}
	*v, c.B = c.B[:n:n], c.B[n:]
}

// Error writes or reads the text of an error.
func (c *Coder) Error(err *error) {
	var text string
	if *err != nil {
		text = (*err).Error()
	}
	c.String(&text)
	if c.Reading && text != "" {
		*err = errors.New(text)
	}
}

// List writes or reads a slice. It calls one for each element.
func List[T any](c *Coder, list *[]T, one func(*T)) {
	n := len(*list)
	c.Len(&n)
	if c.Reading {
		*list = make([]T, n)
	}
	for i := range *list {
		one(&(*list)[i])
	}
}
