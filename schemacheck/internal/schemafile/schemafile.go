// Package schemafile reads schemacheck.yaml: what a team calls its events, the topics
// and levels that they have, and what is waived, for whom and until when.
//
// It owns the format and its limits. It judges no schema.
//
// Concurrency: a File is read-only.
package schemafile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
)

// Limits of a file.
const (
	maxSize    = 1 << 20 // bytes
	maxEntries = 1000    // of a list
	maxText    = 500     // characters of a value
)

// File is what schemacheck.yaml says. The zero value says nothing.
type File struct {
	Version  int      `yaml:"version"`  // 1
	Events   []string `yaml:"events"`   // as --events
	Exclude  []string `yaml:"exclude"`  // as --exclude
	Released string   `yaml:"released"` // as --released
	Policy   string   `yaml:"policy"`   // as --policy
	Strict   bool     `yaml:"strict"`   // as --strict
	Topics   []string `yaml:"topics"`   // all topics that an event may declare; none is any
	Levels   []Level  `yaml:"levels"`   // the first that matches an event is its policy
	Waivers  []Waiver `yaml:"waivers"`
	Lint     Lint     `yaml:"lint"`
}

// Level is the policy of some events: those of a topic, or of a pattern as in Events
// or of full names.
type Level struct {
	Topic  string `yaml:"topic"`
	Events string `yaml:"events"`
	Policy string `yaml:"policy"`

	Parsed compat.Policy `yaml:"-"`
}

// Waiver lets one finding pass for a time.
type Waiver struct {
	Rule    string `yaml:"rule"`    // its id or the alias: FIELD_RENAMED or N01
	Subject string `yaml:"subject"` // full name of the element, or a pattern
	Reason  string `yaml:"reason"`
	Owner   string `yaml:"owner"`   // the team that is responsible for it
	Expires string `yaml:"expires"` // the last day on which it holds, UTC: 2026-12-31

	ID   rule.ID `yaml:"-"` // what Rule names; "" if it is the code of no rule here
	last time.Time
}

// Lint is what event names and options must be.
type Lint struct {
	Past     []string `yaml:"past"`     // words that count as past tense beside the built-in ones
	Required []string `yaml:"required"` // fields of the event option that each event sets
	Carries  []string `yaml:"carries"`  // fields that each event has, those of messages in it behind a dot
}

// ruleCode is the form of short ids. Those of rules that are not here any more are
// accepted: their waivers apply to nothing.
var ruleCode = regexp.MustCompile(`^[A-Z][0-9]{2}$`)

// Parse reads a file. It refuses unknown keys, with their lines.
func Parse(b []byte) (*File, error) {
	if len(b) > maxSize {
		return nil, fmt.Errorf("larger than %d bytes", maxSize)
	}
	f := &File{}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " "))
	}
	if err := d.Decode(&File{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	if f.Version != 1 {
		return nil, errors.New("version must be 1")
	}
	return f, f.check()
}

func (f *File) check() error {
	for name, list := range map[string][]string{
		"events": f.Events, "exclude": f.Exclude, "topics": f.Topics, "lint.past": f.Lint.Past,
		"lint.required": f.Lint.Required, "lint.carries": f.Lint.Carries,
	} {
		if len(list) > maxEntries {
			return fmt.Errorf("%s: more than %d entries", name, maxEntries)
		}
		for _, s := range list {
			if err := text(s); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if _, err := path.Match(s, ""); err != nil {
				return fmt.Errorf("%s: %q is no pattern", name, s)
			}
		}
	}
	if f.Policy != "" {
		if _, err := compat.ParsePolicy(f.Policy); err != nil {
			return fmt.Errorf("policy %s: %w", f.Policy, err)
		}
	}
	if len(f.Levels) > maxEntries || len(f.Waivers) > maxEntries {
		return fmt.Errorf("more than %d levels or waivers", maxEntries)
	}
	for i := range f.Levels {
		if err := f.Levels[i].check(); err != nil {
			return fmt.Errorf("level %d: %w", i+1, err)
		}
	}
	for i := range f.Waivers {
		if err := f.Waivers[i].check(); err != nil {
			return fmt.Errorf("waiver %d: %w", i+1, err)
		}
	}
	return nil
}

func text(s string) error {
	switch {
	case strings.TrimSpace(s) == "":
		return errors.New("an entry is empty")
	case utf8.RuneCountInString(s) > maxText:
		return fmt.Errorf("an entry has more than %d characters", maxText)
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }):
		return errors.New("an entry has a line feed or another control character")
	}
	return nil
}

func (l *Level) check() (err error) {
	if (l.Topic == "") == (l.Events == "") {
		return errors.New("give topic or events")
	}
	if _, err := path.Match(l.Events, ""); err != nil {
		return fmt.Errorf("%q is no pattern", l.Events)
	}
	if l.Parsed, err = compat.ParsePolicy(l.Policy); err != nil {
		return fmt.Errorf("policy %q: %w", l.Policy, err)
	}
	return nil
}

func (w *Waiver) check() (err error) {
	for name, value := range map[string]string{"rule": w.Rule, "subject": w.Subject, "reason": w.Reason, "owner": w.Owner,
		"expires": w.Expires} {
		if err := text(value); err != nil {
			return fmt.Errorf("%s is missing or too long: a waiver has rule, subject, reason, owner and expires", name)
		}
	}
	id, known := rule.Parse(w.Rule)
	switch {
	case known:
		w.ID = id
	case !ruleCode.MatchString(w.Rule):
		return fmt.Errorf("%q is no rule; schemacheck rules lists them", w.Rule)
	}
	if _, err := path.Match(w.Subject, ""); err != nil {
		return fmt.Errorf("subject %q is no pattern", w.Subject)
	}
	if strings.Trim(w.Subject, "*?.") == "" {
		return errors.New("subject must name something: it would waive the rule itself")
	}
	if w.last, err = time.Parse(time.DateOnly, w.Expires); err != nil {
		return fmt.Errorf("expires %q is no day like 2026-12-31", w.Expires)
	}
	return nil
}

// Covers says whether a finding is what the waiver is about.
func (w Waiver) Covers(id rule.ID, subject string) bool {
	ok, _ := path.Match(w.Subject, subject)
	return id != "" && w.ID == id && (ok || w.Subject == subject)
}

// Expired says whether the waiver's last day is over.
func (w Waiver) Expired(now time.Time) bool { return !now.UTC().Before(w.last.AddDate(0, 0, 1)) }

// String is the waiver in a line.
func (w Waiver) String() string {
	return fmt.Sprintf("%s of %s, until %s, by %s: %s", w.Rule, w.Subject, w.Expires, w.Owner, w.Reason)
}

// Allows says whether an event may declare a topic.
func (f *File) Allows(topic string) bool {
	return len(f.Topics) == 0 || slices.Contains(f.Topics, topic)
}
