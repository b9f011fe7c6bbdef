// Command etcdserver is the etcd server of the tests: etcd's own main function,
// in a module of its own, so that the product's go.mod does not grow by a server.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
