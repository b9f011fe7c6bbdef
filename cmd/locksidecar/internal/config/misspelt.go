package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/upstream/nearest"
)

// Misspelt returns an error that names each environment variable whose name is nearly one of ours,
// or has the name of a flag: --max-conns is LOCKSIDECAR_LIMITS_MAX_CONNS.
// It ignores other variables with our prefix, because Kubernetes sets LOCKSIDECAR_PORT for a
// service named locksidecar.
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
		near := nearest.Of(rest, known)
		if path := pathOfFlag(rest); path != "" {
			near = strings.ReplaceAll(path, ".", "_")
		}
		if found && value != "" && near != "" && near != strings.ToLower(rest) {
			faults = append(faults, fmt.Errorf("%s: unknown variable; did you mean %s?",
				name, ours+strings.ToUpper(near)))
		}
	}
	return errors.Join(faults...)
}

// pathOfFlag returns the path of the setting whose flag has that name, in any case and with - or _
// between words; "" if there is none.
func pathOfFlag(name string) string {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	for i := range settings {
		if settings[i].Flag == name && name != "" {
			return settings[i].Path
		}
	}
	return ""
}
