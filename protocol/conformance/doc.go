// Package conformance runs a client program, in any language, through scenarios of PROTOCOL.md, and
// reports for each whether the client passed. docs/contribute/client.md describes what the program
// has to do: it reads commands from its standard input and writes answers to its standard output,
// one JSON object per line.
//
// Each scenario has its own process of the client, directory and socket. Most scenarios run the
// real daemon on the embedded store, in this process. If a scenario needs a daemon that does what a
// real one does not, it uses a fake, which sends the frames that the scenario chooses.
//
// Goroutines: each scenario has one, one for each output stream of the client, and one that waits
// for its process. The fake has one that accepts connections, and one for each connection. All have
// ended when Run returns. Lock order: fake.mu, then program.mu; fakeConn.mu is held with neither.
package conformance
