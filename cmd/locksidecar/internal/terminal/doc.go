// Package terminal shows a program that fills the screen: a Screen draws lines and is left as it
// was found, a Decoder makes keys of what is typed, and Clean makes text of strangers harmless.
// It knows nothing of locks.
//
// The sequences that it writes are few, and those of any terminal since the VT100 but for the
// alternate screen, which is left alone by those that have none.
//
// A Screen owns one goroutine, which reads what is typed; Close waits for it, on Linux. All methods are for
// one goroutine but Rescue. There are no locks.
package terminal
