package cache

type Lease struct{}
