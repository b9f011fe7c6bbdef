// Package scenario holds what is measured: each file is one scene with its rows,
// its checks against what was asked for, and the reason for its shape. Rows are
// run in turn, round by round (A B C, A B C, …), so that what the machine does to
// one it does to all, and ratios are taken within a round.
package scenario
