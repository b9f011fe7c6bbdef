// Package storetest is a conformance suite for stores: it tests the contract of package upstream.
// Each driver's tests run it against a real server.
//
// A host is one Store, as one daemon has it. The hosts of a test share a prefix. Only the tests
// that race hosts start goroutines, and they wait for them.
package storetest
