// Package testserver starts real servers that are private to a test. Each has its own directory, a
// free loopback port and a Unix socket, and ends with the test that started it.
//
// A Server's methods are for one goroutine at a time. The goroutine that reaps
// the process belongs to the Server and has ended when Kill, Stop or the
// test's clean-up returns.
package testserver
