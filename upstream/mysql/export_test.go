package mysql

import "fmt"

// WithoutReturning makes the store read rows separately, as it does on servers whose writes cannot
// return them.
func WithoutReturning(c *Config) { c.plain = true }

// Numbers returns a table with the numbers from 1 to n, at most 10,000, in column seq. MySQL has no
// sequences.
func Numbers(n int) string { return numbers(n) }

func numbers(n int) string {
	const digits = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL " +
		"SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	return fmt.Sprintf("(SELECT 1+a.d+10*b.d+100*c.d+1000*e.d AS seq FROM %[1]s a,%[1]s b,%[1]s c,%[1]s e "+
		"HAVING seq<=%[2]d) AS numbers", digits, n)
}
