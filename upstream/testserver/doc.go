// Package testserver starts private servers for tests: real ones, each in a
// directory of its own, on a free loopback port and a Unix socket, ended with
// the test that started it.
//
// A Server's methods are for one goroutine at a time. The goroutine that reaps
// the process belongs to the Server and has ended when Kill, Stop or the
// test's clean-up returns.
package testserver
