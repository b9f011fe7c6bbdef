//go:build !race

package embedded_test

const raceDetector = false
