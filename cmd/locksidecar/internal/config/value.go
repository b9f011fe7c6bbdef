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

// shortestTTL is shorter than any practical TTL; stores may have a larger minimum. longestTTL is
// the maximum of the protocol.
const (
	shortestTTL       = 10 * time.Millisecond
	longestTTL        = protocol.MaxTTL * time.Millisecond
	shortestHold      = 10 * time.Millisecond
	shortestHeartbeat = time.Second
	// longestLinger is the maximum of the daemon.
	longestLinger = 2 * time.Second
)

// value is a setting's value.
type value interface {
	pflag.Value
	about() string // a description of the allowed values
}

// parsed is a value whose text is parsed by the function parse.
type parsed[T any] struct {
	v             *T
	kind, allowed string
	parse         func(string) (T, error)
}

func (p parsed[T]) String() string { return fmt.Sprint(*p.v) }
func (p parsed[T]) Type() string   { return p.kind }
func (p parsed[T]) about() string  { return p.allowed }

func (p parsed[T]) Set(s string) error {
	v, err := p.parse(s)
	if err == nil {
		*p.v = v
	}
	return err
}

// text returns a value that accepts any string without control characters.
func text(v *string) value {
	return parsed[string]{v, "string", "text", func(s string) (string, error) {
		if strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			return "", errors.New("contains a control character")
		}
		return s, nil
	}}
}

// duration returns a value that accepts a time from min to max. If max is 0, there is no upper
// limit.
func duration(v *time.Duration, min, max time.Duration) value {
	allowed := "a time"
	if min > 0 {
		allowed += " from " + short(min)
	}
	switch {
	case max > 0 && min > 0:
		allowed += " to " + short(max)
	case max > 0:
		allowed += " up to " + short(max)
	}
	return parsed[time.Duration]{v, "duration", allowed, func(s string) (time.Duration, error) {
		d, err := ParseDuration(s)
		switch {
		case err != nil:
			return 0, err
		case d < min:
			return 0, fmt.Errorf("is too short; the minimum is %s", short(min))
		case max > 0 && d > max:
			return 0, fmt.Errorf("is too long; the maximum is %s", short(max))
		}
		return d, nil
	}}
}

// durationOrNone is like duration without an upper limit, but 0 is allowed, too.
func durationOrNone(v *time.Duration, min time.Duration) value {
	p := duration(v, min, 0).(parsed[time.Duration])
	parse := p.parse
	p.allowed += ", or 0"
	p.parse = func(s string) (time.Duration, error) {
		if d, err := ParseDuration(s); err == nil && d == 0 {
			return 0, nil
		}
		return parse(s)
	}
	return p
}

// short formats a time without the units that are 0: 24h instead of 24h0m0s.
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

// number returns a value that accepts a whole number from min to max.
func number(v *int, min, max int) value {
	return parsed[int]{v, "int", fmt.Sprintf("%d to %d", min, max),
		func(s string) (int, error) {
			n, err := strconv.Atoi(s)
			if err != nil {
				return 0, errors.New("is not a whole number")
			}
			if n < min || n > max {
				return 0, fmt.Errorf("is not between %d and %d", min, max)
			}
			return n, nil
		}}
}

// octal is a file mode that is shown in octal, as in the file.
type octal fs.FileMode

func (m octal) String() string { return fmt.Sprintf("%#o", uint32(m)) }

// mode returns a value that accepts the permissions of a file, in octal.
func mode(v *fs.FileMode) value {
	return parsed[octal]{(*octal)(v), "mode", "octal permissions, 0600 and more",
		func(s string) (octal, error) {
			n, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
			if err != nil || n > 0o777 {
				return 0, errors.New("is not a file mode, such as 0660")
			}
			if n&0o600 != 0o600 {
				return 0, errors.New("does not let the daemon's own user read and write")
			}
			return octal(n), nil
		}}
}

// choice returns a value that accepts one of several words.
func choice(v *string, words ...string) value {
	last := len(words) - 1
	allowed := "`" + strings.Join(words[:last], "`, `") + "` or `" + words[last] + "`"
	return parsed[string]{v, "word", allowed, func(s string) (string, error) {
		if !slices.Contains(words, s) {
			return "", fmt.Errorf("is not one of %s", strings.Join(words, ", "))
		}
		return s, nil
	}}
}

// yesno returns a value that accepts true or false.
func yesno(v *bool) value {
	return parsed[bool]{v, "bool", "`true` or `false`", func(s string) (bool, error) {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return false, errors.New("is neither true nor false")
		}
		return b, nil
	}}
}

// fence returns a value that accepts a fence base.
func fence(v *uint64) value {
	return parsed[uint64]{v, "number", "a number below 2^52", func(s string) (uint64, error) {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil || n >= 1<<52 {
			return 0, errors.New("is not a whole number below 2^52")
		}
		return n, nil
	}}
}

// list is a list that is shown with commas.
type list []string

func (l list) String() string { return strings.Join(l, ",") }

// names returns a value that accepts a list of names, separated by commas.
func names(v *[]string) value {
	return parsed[list]{(*list)(v), "names", "a list of names or numbers",
		func(s string) (all list, err error) {
			for name := range strings.SplitSeq(s, ",") {
				if name = strings.TrimSpace(name); name != "" {
					all = append(all, name)
				}
			}
			return all, nil
		}}
}
