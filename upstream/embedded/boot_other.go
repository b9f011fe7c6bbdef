//go:build !linux && !darwin

package embedded

// bootID returns a constant, because the id of the boot is unknown here. So a Store always waits
// for a deadline in the state file to pass, for at most the TTL in the file.
func bootID() (string, error) { return "unknown", nil }
