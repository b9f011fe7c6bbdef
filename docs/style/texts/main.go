// Command texts prints the prose of Go files as Markdown, so that the prose can be checked. Its
// arguments name directories. The prose is the comments, and the string literals of at least five
// words outside tests, because these are messages to people. The file and the line precede each.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// code matches literals that are not prose: SQL, Lua, and other text for programs.
var code = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|CREATE|redis\.call|local \w+ =|function\()\b|[{}<>;]\n`)

func main() {
	for _, dir := range os.Args[1:] {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			return texts(path)
		})
		if err != nil {
			log.Fatal(err)
		}
	}
}

// texts prints the prose of one file.
func texts(path string) error {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return err
	}
	if ast.IsGenerated(file) {
		return nil
	}
	for _, c := range file.Comments {
		fmt.Printf("%s:%d\n\n%s\n\n", path, set.Position(c.Pos()).Line, c.Text())
	}
	if strings.HasSuffix(path, "_test.go") {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil || len(strings.Fields(text)) < 5 || code.MatchString(text) {
			return true
		}
		fmt.Printf("%s:%d\n\n%s\n\n", path, set.Position(lit.Pos()).Line, paragraphs(text))
		return true
	})
	return nil
}

// paragraphs returns text as Markdown in which each entry of an indented list is a paragraph. Lines
// that are indented more than the first line of an entry continue it.
func paragraphs(text string) string {
	var b strings.Builder
	indent := 0
	for line := range strings.Lines(text) {
		trimmed := strings.TrimLeft(line, " \t")
		if n := len(line) - len(trimmed); indent == 0 && n > 0 || indent > 0 && n <= indent {
			b.WriteString("\n")
			indent = n
		}
		b.WriteString(trimmed)
	}
	return b.String()
}
