package rule

import "google.golang.org/protobuf/reflect/protoreflect"

// Finding is one change that a rule does not let pass.
type Finding struct {
	Rule     ID // see All
	Severity Severity
	// Where the element stands: in head, or in base if it is no longer in head.
	// Line and Column count from 1; 0 without source positions.
	File         string
	Line, Column int
	Base         bool
	Subject      string // full name of the element
	Detail       string // what changed, "int32 to int64"; may be empty
	// Which direction breaks; neither for what decodes and is blocked by policy.
	OldReadsNew, NewReadsOld bool
	Form                     string // forms that break, joined by ","
	Why, Suggestion          string // one sentence each
}

// FindingAt returns a rule's finding at an element, which stands in base or in head.
func FindingAt(id ID, at protoreflect.Descriptor, base bool) Finding {
	r, _ := ByID(id)
	f := Finding{
		Rule: id, Severity: r.Severity, OldReadsNew: r.OldReadsNew, NewReadsOld: r.NewReadsOld, Form: r.Form,
		File: at.ParentFile().Path(), Base: base, Subject: string(at.FullName()), Why: r.Why, Suggestion: r.Suggestion,
	}
	if at.ParentFile() == at {
		f.Subject = f.File
	}
	if loc := at.ParentFile().SourceLocations().ByDescriptor(at); loc.Path != nil || loc.EndLine > 0 {
		f.Line, f.Column = loc.StartLine+1, loc.StartColumn+1
	}
	return f
}
