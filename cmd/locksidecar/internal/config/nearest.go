package config

import (
	"errors"
	"fmt"
	"strings"
)

// Nearest is the one of known that name may be a slip of: at most two letters are other, missing or too
// many, and at most a third of them all. It is empty when there is none.
func Nearest(name string, known []string) string {
	same := strings.NewReplacer("-", "_")
	name = same.Replace(strings.ToLower(name))
	best, least := "", min(2, len(name)/3)+1
	for _, k := range known {
		if d := distance(name, same.Replace(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is Levenshtein's, in bytes.
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

// Misspelt names each variable of the environment that is close to one of ours, and none of them. Others
// that begin in the same way are left alone: Kubernetes makes LOCKSIDECAR_PORT for a service of that name.
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
