package upstream

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// BootID returns an id that no other boot of any machine has.
func BootID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return id, nil
}
