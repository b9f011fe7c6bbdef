// Package terminal is for programs that fill the screen. A Screen draws lines and restores the
// terminal at the end, a Decoder turns input into keys, and Clean makes untrusted text harmless.
// The package knows nothing of locks.
//
// It writes few sequences. Every terminal since the VT100 knows them, except those for the
// alternate screen, which a terminal without one ignores.
//
// A Screen owns one goroutine, which reads the input. On Linux, Close waits for it. All methods
// except Rescue are for one goroutine. There are no locks.
package terminal
