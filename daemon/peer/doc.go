// Package peer identifies the process at the other end of a Unix socket, and reports its end even
// if a forked child still has the socket. It uses SO_PEERPIDFD, or else pidfd_open with a check of
// the start time, where the pid is visible. Elsewhere than on Linux it does neither.
package peer
