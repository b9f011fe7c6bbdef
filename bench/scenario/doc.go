// Package scenario defines what is measured. Each file is one scene with its rows, its checks
// against the targets, and the reason for its shape. Rows are run in turn, round by round (A B C, A
// B C, …), and ratios are taken within a round. So what the machine does to one row, it does to
// all.
package scenario
