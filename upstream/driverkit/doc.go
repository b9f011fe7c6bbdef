// Package driverkit has the code that the store drivers share and that is not part of the
// contract: the options of a Store, errors, connections with TLS, pauses between attempts, the
// streams of hints and session deadlines, checks of ops, the versions of servers, and what stores
// in SQL tables need.
//
// Nothing here starts a goroutine. Store URLs are in package storeurl.
package driverkit
