//go:build !linux && !darwin

package upstream

// BootID returns a constant, because the id of the boot is unknown here. So an embedded store
// always waits for a deadline in its state file to pass, for at most the TTL in the file.
func BootID() (string, error) { return "unknown", nil }
