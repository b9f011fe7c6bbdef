//go:build !linux

package tuning

func dropPages() {}
