// Package config is what the daemon can be told, and where it may be told so:
// built-in defaults, then a YAML file, then the environment, then flags, the later
// one counting. One table of settings (settings.go) serves all four, so that a
// value is written and checked in the same way everywhere.
//
// Secrets come from the file, from files that it names, or from the environment;
// they have no flags, since others can read a process's arguments, and are never
// shown.
//
// Nothing here connects to anything. There are no goroutines and no locks.
package config
