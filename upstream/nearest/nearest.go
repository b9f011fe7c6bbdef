// Package nearest finds the known name of which a given name may be a misspelling.
package nearest

import "strings"

// Of returns the entry of known of which name may be a misspelling, or "". At most two letters, and
// at most a third of the name's, may be changed, missing or added. Two neighbours in the wrong
// order count as one letter.
func Of(name string, known []string) string {
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

// distance returns the Damerau-Levenshtein distance (optimal string alignment), in bytes.
func distance(a, b string) int {
	// row[j] is the distance of a's first i bytes from b's first j. last and before are the rows
	// for i-1 and i-2.
	row, last, before := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row, last, before = before, row, last
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j-1]+cost, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
