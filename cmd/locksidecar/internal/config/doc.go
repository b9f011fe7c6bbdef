// Package config reads the daemon's configuration from built-in defaults, a YAML file, the
// environment and flags. Each of these overrides the ones before it. One table of settings
// (settings.go) serves all four, so that a value is written and checked in the same way everywhere.
//
// Secrets come from the file, from files that it names, or from the environment. They have no
// flags, because other users can read a process's arguments. They are never shown.
//
// Nothing here connects to anything. There are no goroutines and no locks.
package config
