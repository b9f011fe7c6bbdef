package config

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/locksidecar/locksidecar/protocol"
)

// shortestTTL is shorter than any practical TTL; stores may have a larger minimum. longestTTL is the
// maximum of the protocol.
const (
	shortestTTL  = 10 * time.Millisecond
	longestTTL   = protocol.MaxTTL * time.Millisecond
	shortestHold = 10 * time.Millisecond
	shortestBeat = time.Second
	// longestLinger is the maximum of the daemon.
	longestLinger = 2 * time.Second
)

// value is a setting's value. about describes the allowed values.
type value interface {
	pflag.Value
	about() string
}

// text is any string without control characters.
type text string

func (t *text) String() string { return string(*t) }
func (t *text) Type() string   { return "string" }
func (t *text) about() string  { return "text" }

func (t *text) Set(s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return errors.New("contains a control character")
	}
	*t = text(s)
	return nil
}

// duration is a time within bounds.
type duration struct {
	d     *time.Duration
	least time.Duration
	most  time.Duration // 0 for no limit
	none  bool          // 0 is allowed, too
}

func (v *duration) Type() string { return "duration" }

func (v *duration) about() string {
	s := "a time"
	switch {
	case v.least > 0 && v.most > 0:
		s += fmt.Sprintf(" from %s to %s", short(v.least), short(v.most))
	case v.least > 0:
		s += fmt.Sprintf(" from %s", short(v.least))
	case v.most > 0:
		s += fmt.Sprintf(" up to %s", short(v.most))
	}
	if v.none {
		s += ", or 0"
	}
	return s
}

// short formats a time without the units that are 0: 24h and not 24h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (v *duration) String() string {
	if v.d == nil {
		return "0s" // pflag asks a zero value for its default
	}
	return v.d.String()
}

func (v *duration) Set(s string) error {
	d, err := ParseDuration(s)
	if err != nil {
		return err
	}
	switch {
	case d < v.least && (d != 0 || !v.none):
		return fmt.Errorf("is too short; the minimum is %s", short(v.least))
	case v.most > 0 && d > v.most:
		return fmt.Errorf("is too long; the maximum is %s", short(v.most))
	}
	*v.d = d
	return nil
}

// ParseDuration reads a Go duration that is not negative.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		if _, err := strconv.ParseFloat(s, 64); err == nil {
			return 0, fmt.Errorf("needs a unit, as in %ss or %sms", s, s)
		}
		return 0, errors.New("is not a duration, such as 500ms, 30s or 1h30m")
	}
	if d < 0 {
		return 0, errors.New("is negative")
	}
	return d, nil
}

// number is a whole number within bounds.
type number struct {
	n           *int
	least, most int
}

func (v *number) Type() string  { return "int" }
func (v *number) about() string { return fmt.Sprintf("a number from %d to %d", v.least, v.most) }

func (v *number) String() string {
	if v.n == nil {
		return "0"
	}
	return strconv.Itoa(*v.n)
}

func (v *number) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return errors.New("is not a whole number")
	}
	if n < v.least || n > v.most {
		return fmt.Errorf("is not between %d and %d", v.least, v.most)
	}
	*v.n = n
	return nil
}

// mode is a file's permissions, octal.
type mode fs.FileMode

func (m *mode) String() string { return fmt.Sprintf("%#o", uint32(*m)) }
func (m *mode) Type() string   { return "mode" }
func (m *mode) about() string  { return "octal permissions, 0600 and more" }

func (m *mode) Set(s string) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || n > 0o777 {
		return errors.New("is not a file mode, such as 0660")
	}
	if n&0o600 != 0o600 {
		return errors.New("does not let the daemon's own user read and write")
	}
	*m = mode(n)
	return nil
}

// choice is one word of several.
type choice struct {
	s     *string
	words []string
}

func (v *choice) Type() string { return "word" }

func (v *choice) about() string {
	last := len(v.words) - 1
	return "`" + strings.Join(v.words[:last], "`, `") + "` or `" + v.words[last] + "`"
}

func (v *choice) String() string {
	if v.s == nil {
		return ""
	}
	return *v.s
}

func (v *choice) Set(s string) error {
	if !slices.Contains(v.words, s) {
		return fmt.Errorf("is not one of %s", strings.Join(v.words, ", "))
	}
	*v.s = s
	return nil
}

// yesno is true or false.
type yesno bool

func (v *yesno) String() string { return strconv.FormatBool(bool(*v)) }
func (v *yesno) Type() string   { return "bool" }
func (v *yesno) about() string  { return "`true` or `false`" }

func (v *yesno) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return errors.New("is neither true nor false")
	}
	*v = yesno(b)
	return nil
}

// fence is a fence base.
type fence uint64

func (v *fence) String() string { return strconv.FormatUint(uint64(*v), 10) }
func (v *fence) Type() string   { return "number" }
func (v *fence) about() string  { return "a number below 2^52" }

func (v *fence) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n >= 1<<52 {
		return errors.New("is not a whole number below 2^52")
	}
	*v = fence(n)
	return nil
}

// names is a list with commas.
type names []string

func (v *names) String() string { return strings.Join(*v, ",") }
func (v *names) Type() string   { return "names" }
func (v *names) about() string  { return "a list of names or numbers" }

func (v *names) Set(s string) error {
	*v = nil
	for name := range strings.SplitSeq(s, ",") {
		if name = strings.TrimSpace(name); name != "" {
			*v = append(*v, name)
		}
	}
	return nil
}
