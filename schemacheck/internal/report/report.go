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
	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/internal/causes"
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
	Waived   []Waived  `json:"waived"` // findings that schemacheck.yaml lets pass
	Judged   Judged    `json:"judged"`
	Files    int       `json:"files"` // files of head in scope
	// what is wrong beside schemas, one sentence each: a released file that was removed
	Problems []string `json:"problems"`
	Notes    []string `json:"notes"` // what a reader should know of the comparison itself
}

// A Finding is one change that a rule does not let pass.
type Finding struct {
	Rule        string   `json:"rule"`     // short alias of the rule: N01
	ID          rule.ID  `json:"ruleId"`   // FIELD_RENAMED
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
	Suggestion  string   `json:"instead"`
	Against     string   `json:"against"` // the member of base
	API         bool     `json:"api"`     // the element is judged as API, not as one of events

	Consequences []Consequence `json:"consequences"`
}

// A Consequence is what follows from a finding elsewhere, or a sample that shows it.
type Consequence struct {
	Rule    string   `json:"rule"`
	ID      rule.ID  `json:"ruleId"`
	Subject string   `json:"subject"`
	Title   string   `json:"title"`
	Detail  string   `json:"detail"`
	Forms   []string `json:"forms"`
}

// Waived is a finding that passes, for a time.
type Waived struct {
	Finding Finding `json:"finding"`
	Reason  string  `json:"reason"`
	Owner   string  `json:"owner"`
	Expires string  `json:"expires"` // its last day, UTC
}

// Judged says what was judged as what in head.
type Judged struct {
	Events []Event  `json:"events"`
	Types  []string `json:"types"` // full names of what the events use
	API    []string `json:"api"`   // files
	Other  []string `json:"other"` // files that the scope leaves out
}

// Event is a message that is judged as an event.
type Event struct {
	Name     string `json:"name"`
	File     string `json:"file"`
	Declared bool   `json:"declared"` // by an option; else by name, or taken for one
	Topic    string `json:"topic"`
	Version  int64  `json:"version"`
}

// An Origin says what the findings of a comparison do not know.
type Origin struct {
	Name     string                      // the member of base
	RepoPath func(compat.Finding) string // path in the repository
	API      func(compat.Finding) bool   // whether the element is judged as API
}

// Add puts findings into the report, once each.
func (r *Report) Add(s Origin, findings []causes.Finding) {
	seen := map[string]bool{}
	for _, f := range r.Findings {
		seen[f.key()] = true
	}
	for _, f := range findings {
		api := s.API(f.Finding)
		n := Finding{
			Rule: f.Rule.Code(), ID: f.Rule, Severity: f.Severity.String(), File: s.RepoPath(f.Finding), Line: f.Line,
			Column: f.Column, InBase: f.Base,
			Subject: f.Subject, Title: worded(title(f.Rule), api), Detail: f.Detail, OldReadsNew: f.OldReadsNew,
			NewReadsOld: f.NewReadsOld,
			Forms:       forms(f.Form, api), Why: worded(f.Why, api), Suggestion: worded(f.Suggestion, api), Against: s.Name,
			API:          api,
			Consequences: []Consequence{},
		}
		if seen[n.key()] {
			continue
		}
		seen[n.key()] = true
		for _, c := range f.Consequences {
			one := Consequence{c.Rule.Code(), c.Rule, c.Subject, title(c.Rule), c.Detail, forms(c.Form, false)}
			twice := func(o Consequence) bool { return o.ID == c.Rule && o.Subject == c.Subject && o.Detail == c.Detail }
			if !slices.ContainsFunc(n.Consequences, twice) { // in the other direction
				n.Consequences = append(n.Consequences, one)
			}
		}
		r.Findings = append(r.Findings, n)
	}
}

// Unread adds a released event that head cannot read, once for each event and reason.
func (r *Report) Unread(path, event, what string) {
	n := Finding{
		Rule: rule.SampleNotDecoded.Code(), ID: rule.SampleNotDecoded, Severity: compat.Block.String(), File: path,
		Subject: event, Title: "released event is not read any more",
		Detail: "head " + what, NewReadsOld: true, Forms: []string{compat.Binary, compat.JSON}, Against: path,
		Consequences: []Consequence{},
		Why:          "It was written with an earlier release and is stored.",
		Suggestion:   "Undo the change that the other findings name, or make it a new event type.",
	}
	if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.key() == n.key() }) {
		r.Findings = append(r.Findings, n)
	}
}

func title(id rule.ID) string {
	r, _ := rule.ByID(id)
	return r.Title
}

// forms splits a list of forms. No registry holds an API.
func forms(list string, api bool) []string {
	return slices.DeleteFunc(strings.Split(list, ","),
		func(form string) bool { return form == "" || api && form == compat.Registry })
}

// key identifies a finding; the same change against two releases is one.
func (f Finding) key() string { return f.Rule + "\x00" + f.Subject + "\x00" + f.Detail }

// Finish counts, and says how it ended.
func (r *Report) Finish() {
	r.Version = 1
	for _, list := range []*[]string{&r.Base, &r.Problems, &r.Notes} {
		if *list == nil {
			*list = []string{}
		}
	}
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	if r.Waived == nil {
		r.Waived = []Waived{}
	}
	r.Judged.fill()
	r.Blocks = len(r.Problems)
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

// Breaks lists in words which consumers cannot read which events, "" if there are none.
func (f Finding) Breaks() string {
	var who []string
	if f.NewReadsOld {
		who = append(who, worded("new consumers on old events", f.API))
	}
	if f.OldReadsNew {
		who = append(who, worded("old consumers on new events", f.API))
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

// location is file:line:column, as far as it is known.
func (f Finding) location() string {
	s := f.File
	if f.Line > 0 {
		s += fmt.Sprintf(":%d:%d", f.Line, f.Column)
	}
	if f.InBase {
		s += " in " + f.Against
	}
	return s
}

// What describes the change in one line.
func (f Finding) What() string {
	s := f.Subject + ": " + f.Title
	if f.Detail != "" {
		s += " (" + f.Detail + ")"
	}
	return s
}

func (r *Report) text(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s %s %s\n", f.location(), f.Severity, f.ID.Label(), f.What())
		if s := f.Breaks(); s != "" {
			fmt.Fprintf(&b, "    %s\n", s)
		}
		fmt.Fprintf(&b, "    why: %s\n", f.Why)
		if f.Suggestion != "" {
			fmt.Fprintf(&b, "    instead: %s\n", f.Suggestion)
		}
		for _, s := range f.follows() {
			fmt.Fprintf(&b, "    %s\n", s)
		}
	}
	for _, s := range r.Waived {
		fmt.Fprintf(&b, "waived: %s\n", s)
	}
	for _, s := range r.Problems {
		fmt.Fprintf(&b, "block: %s\n", s)
	}
	for _, s := range append(slices.Clone(r.Notes), r.Judged.lines()...) {
		fmt.Fprintf(&b, "note: %s\n", s)
	}
	fmt.Fprintln(&b, r.Summary())
	_, err := io.WriteString(w, b.String())
	return err
}

// Summary is the outcome in a line.
func (r *Report) Summary() string {
	s := fmt.Sprintf("%s: %s, %s; %s of %s", verdict(r), count(r.Blocks, "block"), count(r.Warnings, "warning"),
		count(r.Files, "file"), r.Head)
	if len(r.Waived) > 0 {
		s = strings.Replace(s, ";", fmt.Sprintf(", %d waived;", len(r.Waived)), 1)
	}
	if len(r.Base) == 0 {
		return s
	}
	return s + " against " + strings.Join(r.Base, ", ") + " under " + r.Policy
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
		properties := []string{"title=" + property.Replace("schemacheck "+f.ID.Label()+": "+f.Title)}
		if f.File != "" && !f.InBase { // a line of base is no line of the pull request
			properties = slices.Insert(properties, 0, "file="+property.Replace(f.File))
			if f.Line > 0 {
				properties = slices.Insert(properties, 1, fmt.Sprintf("line=%d", f.Line), fmt.Sprintf("col=%d", f.Column))
			}
		}
		message := []string{f.What()}
		if f.InBase {
			message[0] = f.location() + ": " + message[0]
		}
		for _, s := range append([]string{f.Breaks(), f.Why, f.Suggestion}, f.follows()...) {
			if s != "" {
				message = append(message, s)
			}
		}
		line(command, properties, strings.Join(message, "\n"))
	}
	for _, s := range r.Problems {
		line("error", []string{"title=schemacheck"}, s)
	}
	for _, s := range r.Waived {
		line("notice", []string{"title=schemacheck%3A waived"}, s.String())
	}
	for _, s := range append(slices.Clone(r.Notes), r.Judged.lines()...) {
		line("notice", []string{"title=schemacheck"}, s)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s: %s, %s\n", verdict(r), count(r.Blocks, "block"), count(r.Warnings, "warning"))
	return err
}
