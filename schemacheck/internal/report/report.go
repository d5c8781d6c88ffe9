// Package report writes findings for people, programs and code hosts: text, JSON,
// SARIF 2.1.0 and GitHub's workflow commands.
//
// It owns these formats. JSON is stable: fields are added, never changed, as long
// as "version" stays 1. It judges nothing.
//
// Concurrency: functions are pure but for the writer and may run together.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	_ "embed"

	"github.com/parley-chat/parley/schemacheck/compat"
)

// Formats of Write.
var Formats = []string{"text", "json", "sarif", "github"}

// Schema is the JSON schema of the format json.
//
//go:embed schema.json
var Schema string

// A Report is the outcome of a comparison, in the form of the format json.
type Report struct {
	Version  int       `json:"version"` // 1
	Base     []string  `json:"base"`    // what was compared with, oldest first
	Head     string    `json:"head"`
	Policy   string    `json:"policy"`
	Scope    string    `json:"scope"`
	Strict   bool      `json:"strict"`
	Result   string    `json:"result"` // clean or findings, as the exit code says
	Blocks   int       `json:"blocks"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
	Files    int       `json:"files"`    // files of head in scope
	Extra    []string  `json:"problems"` // what is wrong beside schemas, one sentence each: a released file that is gone
	Notes    []string  `json:"notes"`    // what a reader should know of the comparison itself
}

// A Finding is one change that a rule does not let pass.
type Finding struct {
	Rule        string   `json:"rule"`
	Severity    string   `json:"severity"` // block or warn
	File        string   `json:"file"`     // path in the repository
	Line        int      `json:"line"`     // from 1; 0 is unknown
	Column      int      `json:"column"`
	InBase      bool     `json:"inBase"` // file and line are those of base: head has lost the element
	Subject     string   `json:"subject"`
	Title       string   `json:"title"`
	Detail      string   `json:"detail"`
	OldReadsNew bool     `json:"oldReadersBreak"`
	NewReadsOld bool     `json:"newReadersBreak"`
	Forms       []string `json:"forms"`
	Why         string   `json:"why"`
	Instead     string   `json:"instead"`
	Against     string   `json:"against"` // the member of base
}

// Add puts findings into the report, once each. The place of a finding is given
// by place.
func (r *Report) Add(against string, findings []compat.Finding, place func(compat.Finding) string) {
	seen := map[string]bool{}
	for _, f := range r.Findings {
		seen[f.key()] = true
	}
	for _, f := range findings {
		rule, _ := compat.RuleByID(f.Rule)
		forms := []string{}
		if f.Form != "" {
			forms = strings.Split(f.Form, ",")
		}
		n := Finding{
			Rule: f.Rule, Severity: f.Severity.String(), File: place(f), Line: f.Line, Column: f.Column, InBase: f.Base,
			Subject: f.Subject, Title: rule.Title, Detail: f.Detail, OldReadsNew: f.OldReadsNew, NewReadsOld: f.NewReadsOld,
			Forms: forms, Why: f.Why, Instead: f.Instead, Against: against,
		}
		if !seen[n.key()] {
			seen[n.key()] = true
			r.Findings = append(r.Findings, n)
		}
	}
}

// key tells findings apart; the same change against two releases is one.
func (f Finding) key() string { return f.Rule + "\x00" + f.Subject + "\x00" + f.Detail }

// Finish counts, and says how it ended.
func (r *Report) Finish() {
	r.Version = 1
	for _, list := range []*[]string{&r.Base, &r.Extra, &r.Notes} {
		if *list == nil {
			*list = []string{}
		}
	}
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	r.Blocks = len(r.Extra)
	r.Warnings = 0
	for _, f := range r.Findings {
		if f.Severity == compat.Block.String() {
			r.Blocks++
		} else {
			r.Warnings++
		}
	}
	r.Result = "clean"
	if r.Blocks > 0 || r.Strict && r.Warnings > 0 {
		r.Result = "findings"
	}
}

// Clean says whether the change may be merged.
func (r *Report) Clean() bool { return r.Result == "clean" }

// Write writes a finished report in a format.
func (r *Report) Write(w io.Writer, format string) error {
	switch format {
	case "json":
		return indented(w, r)
	case "sarif":
		return indented(w, r.sarif())
	case "github":
		return r.github(w)
	}
	return r.text(w)
}

func indented(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// breaks says in words who cannot read what.
func (f Finding) breaks() string {
	var who []string
	if f.NewReadsOld {
		who = append(who, "new consumers on old events")
	}
	if f.OldReadsNew {
		who = append(who, "old consumers on new events")
	}
	if who == nil {
		return ""
	}
	s := "breaks " + strings.Join(who, " and ")
	if len(f.Forms) > 0 {
		s += " (" + strings.Join(f.Forms, ", ") + ")"
	}
	return s
}

// place is file:line:column, as far as it is known.
func (f Finding) place() string {
	s := f.File
	if f.Line > 0 {
		s += fmt.Sprintf(":%d:%d", f.Line, f.Column)
	}
	if f.InBase {
		s += " in " + f.Against
	}
	return s
}

// what says in a line what changed.
func (f Finding) what() string {
	s := f.Subject + ": " + f.Title
	if f.Detail != "" {
		s += " (" + f.Detail + ")"
	}
	return s
}

func (r *Report) text(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s %s %s\n", f.place(), f.Severity, f.Rule, f.what())
		if s := f.breaks(); s != "" {
			fmt.Fprintf(&b, "    %s\n", s)
		}
		fmt.Fprintf(&b, "    why: %s\n", f.Why)
		if f.Instead != "" {
			fmt.Fprintf(&b, "    instead: %s\n", f.Instead)
		}
	}
	for _, s := range r.Extra {
		fmt.Fprintf(&b, "block: %s\n", s)
	}
	for _, s := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", s)
	}
	fmt.Fprintf(&b, "%s: %s, %s; %s of %s against %s under %s\n", verdict(r), count(r.Blocks, "block"), count(r.Warnings, "warning"),
		count(r.Files, "file"), r.Head, strings.Join(r.Base, ", "), r.Policy)
	_, err := io.WriteString(w, b.String())
	return err
}

func verdict(r *Report) string {
	if r.Clean() {
		return "compatible"
	}
	return "not compatible"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// github writes annotations: they appear at the changed lines of a pull request.
func (r *Report) github(w io.Writer) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	var b strings.Builder
	line := func(command string, properties []string, message string) {
		fmt.Fprintf(&b, "::%s %s::%s\n", command, strings.Join(properties, ","), data.Replace(message))
	}
	for _, f := range r.Findings {
		command := "error"
		if f.Severity != compat.Block.String() {
			command = "warning"
		}
		properties := []string{"title=" + property.Replace("schemacheck "+f.Rule+": "+f.Title)}
		if f.File != "" && !f.InBase { // a line of base is no line of the pull request
			properties = slices.Insert(properties, 0, "file="+property.Replace(f.File))
			if f.Line > 0 {
				properties = slices.Insert(properties, 1, fmt.Sprintf("line=%d", f.Line), fmt.Sprintf("col=%d", f.Column))
			}
		}
		message := []string{f.what()}
		if f.InBase {
			message[0] = f.place() + ": " + message[0]
		}
		for _, s := range []string{f.breaks(), f.Why, f.Instead} {
			if s != "" {
				message = append(message, s)
			}
		}
		line(command, properties, strings.Join(message, "\n"))
	}
	for _, s := range r.Extra {
		line("error", []string{"title=schemacheck"}, s)
	}
	for _, s := range r.Notes {
		line("notice", []string{"title=schemacheck"}, s)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s: %s, %s\n", verdict(r), count(r.Blocks, "block"), count(r.Warnings, "warning"))
	return err
}
