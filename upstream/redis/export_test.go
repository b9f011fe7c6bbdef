package redis

// FenceName is the name of the counter of a cluster's slot.
func FenceName(slot int) string { return clusterNames()[slot].fence }
