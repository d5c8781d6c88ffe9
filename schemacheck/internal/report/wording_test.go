package report

import (
	"regexp"
	"testing"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
)

// Reasons of an API speak of what an API has: neither of events, nor of what stores
// and registers them.
func TestWordsOfAPI(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)\bevents?\b|consumer|registr|stored`)
	ofEvents := regexp.MustCompile(`^[XHW]|^F04|^M0[2567]|^M1[01]`) // rules that an API never meets
	for _, r := range compat.Rules() {
		if ofEvents.MatchString(r.Code) {
			continue
		}
		if r.ID.Has(rule.FromUsedType) || r.Severity == compat.Allow {
			continue
		}
		for _, s := range []string{r.Title, r.Why, r.Suggestion} {
			if got := worded(s, true); foreign.MatchString(got) {
				t.Errorf("%s: %q", r.ID, got)
			}
			if worded(s, false) != s {
				t.Errorf("%s: %q is changed for events", r.ID, s)
			}
		}
	}
	f := Finding{NewReadsOld: true, OldReadsNew: true, API: true, Forms: forms("binary,registry", true)}
	if got := f.Breaks(); got != "breaks new readers on old messages and old readers on new messages (binary)" {
		t.Error(got)
	}
}
