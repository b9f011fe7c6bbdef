package top

import (
	"fmt"
	"strconv"
)

// Short formats a time of less than 270 years in at most six columns.
func Short(ms int64) string {
	s := ms / 1000
	switch {
	case ms < 0:
		return "-"
	case s == 0:
		return strconv.FormatInt(ms, 10) + "ms"
	case s < 10:
		return fmt.Sprintf("%d.%ds", s, ms/100%10)
	case s < minute:
		return fmt.Sprintf("%ds", s)
	case s < hour:
		return fmt.Sprintf("%dm%02ds", s/minute, s%minute)
	case s < day:
		return fmt.Sprintf("%dh%02dm", s/hour, s%hour/minute)
	case s < 100*day:
		return fmt.Sprintf("%dd%02dh", s/day, s%day/hour)
	}
	return fmt.Sprintf("%dd", s/day)
}

// These are in seconds.
const (
	minute = 60
	hour   = 60 * minute
	day    = 24 * hour
)

// Count formats a number with commas between thousands.
func Count[N int | int64 | uint64](n N) string {
	s := strconv.FormatUint(uint64(max(n, 0)), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func number[N int | uint64 | int64](n N) string { return strconv.FormatUint(uint64(max(n, 0)), 10) }

// UnlessZero returns n in decimal, or "-" if n is 0, which means that it is not known.
func UnlessZero[N int | uint64 | int64](n N) string {
	if n <= 0 {
		return "-"
	}
	return number(n)
}

// rate formats a number per second.
func rate(r float64) string {
	if r > 0 && r < 10 {
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return Count(int64(r + 0.5))
}
