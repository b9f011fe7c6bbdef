package mysql

import (
	"strconv"
	"time"
)

// text is a packet of statements under construction. All external input is in it as hexadecimal
// literals or numbers.
type text []byte

func (t *text) add(s string) *text {
	*t = append(*t, s...)
	return t
}

func (t *text) num(n int64) *text {
	*t = strconv.AppendInt(*t, n, 10)
	return t
}

func (t *text) hex(s string) *text {
	const digits = "0123456789abcdef"
	b := append(*t, 'x', '\'')
	for i := range len(s) {
		b = append(b, digits[s[i]>>4], digits[s[i]&15])
	}
	*t = append(b, '\'')
	return t
}

// token adds a token as bytes.
func (t *text) token(s string) *text { return t.add("_binary'" + s + "'") }

// addList adds (a,b,…), where add adds one of them.
func addList[T any](t *text, of []T, add func(T)) {
	sep := "("
	for _, v := range of {
		t.add(sep)
		add(v)
		sep = ","
	}
	t.add(")")
}

// micros returns d in µs, rounded up, because the store must not end a lease before this daemon
// does.
func micros(d time.Duration) int64 {
	return max(0, int64((d+time.Microsecond-1)/time.Microsecond))
}
