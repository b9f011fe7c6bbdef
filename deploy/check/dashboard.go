package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// board is as much of a dashboard as this one uses: a field that is not here is a
// fault, since Grafana would pass over it in silence.
type board struct {
	UID, Title, Description, Timezone, Refresh                            string
	Tags                                                                  []string
	SchemaVersion, Version, GraphTooltip, FiscalYearStartMonth, WeekStart any
	Editable                                                              bool
	Time                                                                  struct{ From, To string }
	Annotations                                                           struct{ List []map[string]any }
	Links                                                                 []any
	Templating                                                            struct{ List []variable }
	Panels                                                                []panel
}

type variable struct {
	Name, Label, Type, Definition, Regex, AllValue string
	Query, Datasource, Current                     any
	Refresh, Sort, Hide                            int
	Multi, IncludeAll, SkipURLSync                 bool
	Options                                        []any
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Collapsed                bool
	Datasource               source
	GridPos                  struct{ H, W, X, Y int }
	FieldConfig, Options     any
	Targets                  []struct {
		RefID, Expr, LegendFormat, EditorMode string
		Range, Instant                        bool
		Datasource                            source
	}
	Panels []any
}

type source struct{ Type, UID string }

// own are the variables that Grafana has itself.
var own = strings.NewReplacer("$__rate_interval", "5m", "$__range", "3h")

func dashboard(_ string, data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var b board
	if err := dec.Decode(&b); err != nil {
		return err
	}
	values := make([]string, 0, 2*len(b.Templating.List))
	for _, v := range b.Templating.List {
		values = append(values, "$"+v.Name, ".*")
	}
	known := strings.NewReplacer(values...)
	var faults []error
	fmt.Println("groups:\n- name: dashboard\n  rules:")
	ids, taken := make(map[int]bool), make(map[[2]int]string)
	for i := range b.Panels {
		p := &b.Panels[i]
		if err := p.check(ids, taken); err != nil {
			faults = append(faults, fmt.Errorf("panel %d, %q: %w", p.ID, p.Title, err))
		}
		for _, t := range p.Targets {
			expr := known.Replace(own.Replace(t.Expr))
			if strings.Contains(expr, "$") {
				faults = append(faults, fmt.Errorf("panel %q: no such variable: %s", p.Title, expr))
			}
			fmt.Printf("  - record: panel%d:%s\n    expr: %q\n", p.ID, t.RefID, expr)
		}
	}
	return errors.Join(faults...)
}

// check looks at what people would see of a panel: it says what it shows, and covers no other.
func (p *panel) check(ids map[int]bool, taken map[[2]int]string) error {
	if ids[p.ID] {
		return errors.New("another has this id")
	}
	ids[p.ID] = true
	g := p.GridPos
	if g.H < 1 || g.W < 1 || g.X < 0 || g.X+g.W > 24 {
		return errors.New("it is outside of the 24 columns")
	}
	for x := g.X; x < g.X+g.W; x++ {
		for y := g.Y; y < g.Y+g.H; y++ {
			if other, there := taken[[2]int{x, y}]; there {
				return fmt.Errorf("it lies over %q", other)
			}
			taken[[2]int{x, y}] = p.Title
		}
	}
	if p.Type == "row" {
		return nil
	}
	if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
		return errors.New("it needs a title, a description and a query")
	}
	refs := make(map[string]bool)
	for _, t := range p.Targets {
		if refs[t.RefID] || t.Expr == "" || t.LegendFormat == "" {
			return fmt.Errorf("query %s is there twice, or empty, or without a legend", t.RefID)
		}
		refs[t.RefID] = true
		if t.Datasource.UID != "${datasource}" {
			return fmt.Errorf("query %s has a data source of its own", t.RefID)
		}
	}
	return nil
}
