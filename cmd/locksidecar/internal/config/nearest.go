package config

import (
	"errors"
	"fmt"
	"strings"
)

// Nearest returns the entry of known of which name may be a misspelling, or "". At most two letters, and at
// most a third of the name's, may be changed, missing or added.
func Nearest(name string, known []string) string {
	same := strings.NewReplacer("-", "_")
	name = same.Replace(strings.ToLower(name))
	best, bound := "", min(2, len(name)/3)+1
	for _, k := range known {
		if d := distance(name, same.Replace(k)); d < bound {
			best, bound = k, d
		}
	}
	return best
}

// distance returns the Levenshtein distance, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			before, row[j+1] = row[j+1], min(before+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Misspelt returns an error that names each environment variable that is nearly one of ours. It ignores other
// variables with our prefix: Kubernetes sets LOCKSIDECAR_PORT for a service named locksidecar.
func Misspelt(environ []string) error {
	const ours = "LOCKSIDECAR_"
	known := []string{"config", "socket", "key", "fence"}
	for i := range settings {
		known = append(known, strings.ToLower(strings.TrimPrefix(settings[i].Variable(), ours)))
	}
	var faults []error
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		rest, found := strings.CutPrefix(name, ours)
		if near := Nearest(rest, known); found && value != "" && near != "" && near != strings.ToLower(rest) {
			faults = append(faults, fmt.Errorf("%s: unknown variable; did you mean %s?", name, ours+strings.ToUpper(near)))
		}
	}
	return errors.Join(faults...)
}
