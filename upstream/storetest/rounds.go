package storetest

import "os"

// Rounds returns how many rounds a random test has: usual, or long if LOCKSIDECAR_TEST_LONG is set.
// Each kind of case has to occur in the usual rounds, too.
func Rounds(usual, long int) int {
	if os.Getenv("LOCKSIDECAR_TEST_LONG") != "" {
		return long
	}
	return usual
}

// With returns cfg after the changes that set makes.
func With[C any](cfg C, set []func(*C)) C {
	for _, f := range set {
		f(&cfg)
	}
	return cfg
}
