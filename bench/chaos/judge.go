package chaos

import (
	"os"
	"path/filepath"
	"regexp"
)

// crashed matches what a program prints when it crashes.
var crashed = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE|Traceback|Exception in thread).*`)

// judge checks the logs and the history.
func (c *bed) judge() {
	h := c.history()
	for _, w := range c.workers {
		if w.err != nil && w.killed == 0 {
			c.fail("broken", "%v", w.err)
		}
	}
	logs, _ := filepath.Glob(filepath.Join(c.dir, "*", "log*"))
	more, _ := filepath.Glob(filepath.Join(c.dir, "worker*.log"))
	for _, f := range append(logs, more...) {
		b, _ := os.ReadFile(f)
		if m := crashed.Find(b); m != nil {
			c.fail("crash", "%s: %s", filepath.Base(filepath.Dir(f)), m)
		}
	}
	for _, p := range h.ops() {
		switch {
		case p.granted():
			c.Operations++
			c.Permits += one(p.permits > 0)
			c.Many += one(p.group > 0)
			c.Lowered += one(p.lowered())
		case p.answered > 0:
			c.Refusals[p.result]++
		}
		if p.why != "" {
			c.Lost[p.why]++
		}
	}
	found, forgiven := h.Check()
	c.Forgiven = forgiven
	c.Violations = append(c.Violations, found...)
	c.Modelled, found = h.Model(modelTime)
	c.Violations = append(c.Violations, found...)
	if c.register != nil {
		c.Guarded, found = c.register.Check(h.forgivesShared())
		c.Violations = append(c.Violations, found...)
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
