// Package driverkit has code that the store drivers share and that is not part of the contract.
// This is code for the options of a Store, errors, TLS connections, pauses between attempts,
// streams of hints and session deadlines, checks of ops, versions of servers, and SQL tables.
//
// Nothing here starts a goroutine. Store URLs are in package storeurl.
package driverkit
