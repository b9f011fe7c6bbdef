package embedded

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// bootID tells this boot of the machine from every other.
func bootID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return id, nil
}
