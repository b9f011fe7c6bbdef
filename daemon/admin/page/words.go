package page

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// clientOf returns the name that a client states.
func clientOf(w *engine.ViewWho) string {
	if w.Detached {
		return "detached"
	}
	if w.Client == "" {
		return "unnamed client"
	}
	return w.Client
}

// whoIs identifies a client.
func whoIs(w *engine.ViewWho) (text string) {
	if w.PID >= 0 {
		text = fmt.Sprintf("process %d, ", w.PID)
	}
	if w.UID >= 0 {
		text += fmt.Sprintf("user %d, ", w.UID)
	}
	if w.Detached {
		return text + "no session"
	}
	return text + fmt.Sprintf("session %d", w.Session)
}

// duration formats milliseconds for readers.
func duration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case ms < 0:
		return "–"
	case d < time.Second:
		return fmt.Sprintf("%d\u00a0ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f\u00a0s", d.Seconds())
	case d < time.Hour:
		return units(int(d.Minutes()), "min", int(d.Seconds())%60, "s")
	case d < 48*time.Hour:
		return units(int(d.Hours()), "h", int(d.Minutes())%60, "min")
	}
	return units(int(d.Hours())/24, "days", int(d.Hours())%24, "h")
}

// units returns a duration in two units, in one line, without the second if it is 0.
func units(n int, unit string, rest int, lesser string) string {
	s := fmt.Sprintf("%d\u00a0%s", n, unit)
	if rest > 0 {
		s += fmt.Sprintf("\u00a0%d\u00a0%s", rest, lesser)
	}
	return s
}

// grouped formats an integer with commas: 1,234,567.
func grouped[N int | int32 | int64 | uint64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	from := 0
	if strings.HasPrefix(s, "-") {
		from = 1
	}
	for i := len(s) - 3; i > from; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// count returns a number with its noun.
func count[N int | int32 | int64 | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return grouped(n) + " " + noun
}
