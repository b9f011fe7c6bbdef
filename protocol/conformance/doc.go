// Package conformance drives a client program, in whatever language, through
// scenarios of PROTOCOL.md and says of each whether it passed. docs/contribute/client.md
// describes what the program has to do: it takes commands on its standard input
// and answers on its standard output, one JSON object a line.
//
// Each scenario has a process of the client, a directory and a socket of its own.
// Behind the socket is the real daemon on the embedded store, in this process, or
// where the daemon is to do what a real one does not, a fake that sends the frames
// that the scenario says.
//
// Goroutines: a scenario has its own; besides, one for each of the client's
// output streams and one that waits for its process; the fake has one that accepts
// and one a connection. All have ended when Run returns. Lock order: fake.mu, then
// program.mu; fakeConn.mu is held with neither.
package conformance
