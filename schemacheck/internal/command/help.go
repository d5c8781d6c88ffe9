package command

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/internal/report"
)

//go:embed help/usage.txt
var usage string

//go:embed help/events.txt
var eventsHelp string

//go:embed help/rules.txt
var rulesHelp string

// help prints a page.
func help(_ context.Context, args []string, e Env) error {
	pages := map[string]string{"": usage, "events": eventsHelp, "json": report.Schema}
	topic := strings.Join(args, " ")
	page, ok := pages[topic]
	if !ok {
		return fmt.Errorf("no help about %q; there are events and json", topic)
	}
	_, err := fmt.Fprint(e.Stdout, page)
	return err
}

// rules lists all rules.
func rules(_ context.Context, args []string, e Env) error {
	var s settings
	if err := s.parse(e, "rules", args, "format"); err != nil {
		return err
	}
	type rule struct {
		ID       string   `json:"rule"`
		Severity string   `json:"severity"` // allow, warn or block
		Title    string   `json:"title"`
		Old      bool     `json:"oldReadersBreak"`
		New      bool     `json:"newReadersBreak"`
		Forms    []string `json:"forms"`
		Why      string   `json:"why"`
		Instead  string   `json:"instead"`
	}
	all := []rule{}
	for _, r := range compat.Rules() {
		forms := []string{}
		if r.Form != "" {
			forms = strings.Split(r.Form, ",")
		}
		all = append(all, rule{r.ID, r.Severity.String(), r.Title, r.OldReadsNew, r.NewReadsOld, forms, r.Why, r.Instead})
	}
	switch s.format {
	case "json":
		enc := json.NewEncoder(e.Stdout)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(map[string]any{"version": 1, "rules": all})
	case "text":
	default:
		return errors.New("rules are listed as text or json")
	}
	fmt.Fprint(e.Stdout, rulesHelp)
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	for _, r := range all {
		line := r.Why
		if r.Instead != "" {
			line += " Instead: " + r.Instead
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.ID, r.Severity, readers(r.Old, r.New), r.Title, line)
	}
	return w.Flush()
}

func readers(old, new bool) string {
	switch {
	case old && new:
		return "both"
	case old:
		return "old"
	case new:
		return "new"
	}
	return "-"
}
