package embedded

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// bootID returns an id that no other boot of any machine has.
func bootID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return id, nil
}
