// Package driverkit has the code that the store drivers share and that is not part of the
// contract: errors, connections with TLS, pauses between attempts, the streams of hints and
// session deadlines, checks of ops, and the versions of servers.
//
// Nothing here starts a goroutine. Store URLs are in package storeurl.
package driverkit
