package command

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/internal/report"
)

//go:embed help/*.txt
var pages embed.FS

//go:embed help/rules.txt
var rulesHelp string

// topics are those of help, each a file but json.
var topics = map[string]string{
	"": "usage", "events": "events", "config": "config", "policy": "policy", "ci": "ci", "registry": "registry",
	"rules":   "rules_help",
	"sources": "sources",
}

func page(name string) string {
	b, err := pages.ReadFile("help/" + topics[name] + ".txt")
	if err != nil {
		panic(err) // a page that is listed is embedded
	}
	return string(b)
}

// help prints a page.
func help(_ context.Context, args []string, e Env) error {
	topic := strings.Join(args, " ")
	text := report.Schema
	if topic != "json" {
		if _, ok := topics[topic]; !ok {
			names := slices.Sorted(maps.Keys(topics))[1:]
			return fmt.Errorf("no help about %q; there are %s and json", topic, strings.Join(names, ", "))
		}
		text = page(topic)
	}
	_, err := fmt.Fprint(e.Stdout, text)
	return err
}

// version prints what the program was built from.
func version(_ context.Context, args []string, e Env) error {
	var s settings
	if err := s.parse(e, "version", args); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.Stdout, "schemacheck %s\n", built())
	return err
}

// Version is set by the build script; a build by go install has that of its module.
var Version string //nolint:gochecknoglobals // the linker writes it

func built() string {
	if Version != "" {
		return Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// rules lists all rules.
func rules(_ context.Context, args []string, e Env) error {
	var s settings
	if err := s.parse(e, "rules", args, "format"); err != nil {
		return err
	}
	type listed struct {
		Code       string   `json:"rule"`
		ID         rule.ID  `json:"ruleId"`
		Severity   string   `json:"severity"` // allow, warn or block
		Title      string   `json:"title"`
		Old        bool     `json:"oldReadersBreak"`
		New        bool     `json:"newReadersBreak"`
		Forms      []string `json:"forms"`
		Why        string   `json:"why"`
		Suggestion string   `json:"instead"`
	}
	all := []listed{}
	for _, r := range append(rule.All(), rule.Naming()...) {
		forms := []string{}
		if r.Form != "" {
			forms = strings.Split(r.Form, ",")
		}
		all = append(all, listed{r.Code, r.ID, r.Severity.String(), r.Title, r.OldReadsNew, r.NewReadsOld, forms, r.Why,
			r.Suggestion})
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
		if r.Suggestion != "" {
			line += " Instead: " + r.Suggestion
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.ID.Label(), r.Severity, readers(r.Old, r.New), r.Title, line)
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
