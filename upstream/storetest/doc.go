// Package storetest is what every store has to do, as tests: the contract of
// package upstream, run by each driver's own tests against its real server.
//
// A host is one Store, as one daemon has it; hosts of a test share a prefix. The
// suite starts goroutines of its own only in the tests that race hosts, and waits
// for them there.
package storetest
