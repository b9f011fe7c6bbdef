// Package run starts a command in a process group of its own and looks after
// it: the terminal goes to the group and comes back, a stop of the group stops
// the job that we are part of, signals go to the whole group, and the command
// dies when we do. Raw and Stop are for a program that itself is at the terminal.
// It knows nothing of locks.
//
// A Process owns one goroutine, tied to its thread: it forks the child, stays,
// and waits for it. That is what PR_SET_PDEATHSIG needs, which follows the thread
// that forked and not the process. The goroutine ends with the child. It sends on
// Events, which has room for the end; the caller has to read the stops.
//
// All methods are for one goroutine, the one that reads Events. There are no
// locks.
//
// Off Linux there is no PR_SET_PDEATHSIG: the child survives a SIGKILL of ours.
package run
