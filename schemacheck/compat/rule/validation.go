package rule

// Rules about what protovalidate checks.
const (
	ValidationTightened          ID = "VALIDATION_TIGHTENED"
	ValidationLoosened           ID = "VALIDATION_LOOSENED"
	ValidationRequiredAdded      ID = "VALIDATION_REQUIRED_ADDED"
	ValidationRequiredRemoved    ID = "VALIDATION_REQUIRED_REMOVED"
	FieldAddedValidationRequired ID = "FIELD_ADDED_VALIDATION_REQUIRED"
	FieldAddedZeroInvalid        ID = "FIELD_ADDED_ZERO_INVALID"
	FieldAddedWithValidation     ID = "FIELD_ADDED_WITH_VALIDATION"
	FieldRemovedZeroInvalid      ID = "FIELD_REMOVED_ZERO_INVALID"
	EnumValueAddedInvalid        ID = "ENUM_VALUE_ADDED_INVALID"
	CELRuleAdded                 ID = "CEL_RULE_ADDED"
	CELRuleRemoved               ID = "CEL_RULE_REMOVED"
	RequiredOneofCaseAdded       ID = "REQUIRED_ONEOF_CASE_ADDED"
	MaxItemsRaised               ID = "MAX_ITEMS_RAISED"
	ValidationReplaced           ID = "VALIDATION_REPLACED"
	ValidatedPresenceChanged     ID = "VALIDATED_PRESENCE_CHANGED"
	ValidationDisabled           ID = "VALIDATION_DISABLED"
	ValidationRewritten          ID = "VALIDATION_REWRITTEN"
	RequiredOneofAdded           ID = "REQUIRED_ONEOF_ADDED"
	RequiredOneofRemoved         ID = "REQUIRED_ONEOF_REMOVED"
)

var validationRules = []Rule{
	{ID: ValidationTightened, Code: "Y01", Severity: Block, NewReadsOld: true, Form: "rules",
		Title:      "validation rule tightened",
		Why:        "New readers refuse old events.",
		Suggestion: "Keep the rule; check stricter limits where the event is made."},
	{ID: ValidationLoosened, Code: "Y02", Severity: Block, OldReadsNew: true, Form: "rules",
		Title:      "validation rule loosened",
		Why:        "Old readers refuse new events.",
		Suggestion: "Keep the rule; wider values need a new field or event type."},
	{ID: ValidationRequiredAdded, Code: "Y03", Severity: Block, NewReadsOld: true, Form: "rules",
		Title:      "field became required by validation",
		Why:        "New readers refuse old events that lack it.",
		Suggestion: "Keep it optional in the schema."},
	{ID: ValidationRequiredRemoved, Code: "Y04", Severity: Block, OldReadsNew: true, Form: "rules",
		Title:      "field is no longer required by validation",
		Why:        "Old readers refuse new events that lack it.",
		Suggestion: "Keep it required."},
	{ID: FieldAddedValidationRequired, Code: "Y05", Severity: Block, NewReadsOld: true, Form: "rules",
		Title:      "field added that validation requires",
		Why:        "New readers refuse all old events.",
		Suggestion: "Add the field without required."},
	{ID: FieldAddedZeroInvalid, Code: "Y06", Severity: Block, NewReadsOld: true, Form: "rules",
		Title:      "field added whose zero value its rules refuse",
		Why:        "Rules of a field without presence run on the zero value, so new readers refuse all old events.",
		Suggestion: "Declare the field optional, so that rules are skipped while it is unset."},
	{ID: FieldAddedWithValidation, Code: "Y07", Severity: Allow,
		Title: "optional field with rules added",
		Why:   "Rules are skipped while the field is unset."},
	{ID: FieldRemovedZeroInvalid, Code: "Y08", Severity: Block, OldReadsNew: true, Form: "rules",
		Title:      "field removed that old validation needs",
		Why:        "Old readers refuse new events that lack it.",
		Suggestion: "Keep the field and mark it deprecated."},
	{ID: EnumValueAddedInvalid, Code: "Y09", Severity: Block, OldReadsNew: true, Form: "json,rules",
		Title:      "value added to an enum of a field that restricts or requires it",
		Why:        "Old readers refuse the new value, or in JSON drop it and then miss it.",
		Suggestion: "Leave out defined_only, in, required and CEL on enums that grow."},
	{ID: CELRuleAdded, Code: "Y10", Severity: Block, NewReadsOld: true, Form: "rules",
		Title:      "CEL or message rule added",
		Why:        "New readers may refuse old events.",
		Suggestion: "Check it where the event is made."},
	{ID: CELRuleRemoved, Code: "Y11", Severity: Block, OldReadsNew: true, Form: "rules",
		Title:      "CEL or message rule removed",
		Why:        "Old readers may refuse new events.",
		Suggestion: "Keep the rule."},
	{ID: RequiredOneofCaseAdded, Code: "Y12", Severity: Block, OldReadsNew: true, Form: "registry,rules",
		Title:      "case added to a oneof that validation requires",
		Why:        "Old readers see the oneof unset and refuse the event.",
		Suggestion: "Add an optional field beside the oneof."},
	{ID: MaxItemsRaised, Code: "Y13", Severity: Block, OldReadsNew: true, Form: "rules",
		Title:      "upper bound of a list or map raised",
		Why:        "Old readers refuse longer lists.",
		Suggestion: "Keep the bound."},
	{ID: ValidationReplaced, Code: "Y14", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "rules",
		Title:      "validation rule replaced",
		Why:        "Each side may refuse what the other one writes.",
		Suggestion: "Keep the rule."},
	{ID: ValidatedPresenceChanged, Code: "Y15", Severity: Block, NewReadsOld: true, Form: "binary,json,rules",
		Title:      "presence of a field with rules changed",
		Why:        "Rules of a field without presence run on the zero value, so an unset field is refused by one side.",
		Suggestion: "Keep the presence."},
	{ID: ValidationDisabled, Code: "Y16", Severity: Block, OldReadsNew: true, Form: "rules",
		Title:      "validation of a field switched off",
		Why:        "Old readers refuse what new writers no longer check.",
		Suggestion: "Keep the rules in force."},
	{ID: ValidationRewritten, Code: "Y17", Severity: Warn,
		Title:      "validation rule rewritten to an equivalent one",
		Why:        "The same values pass; a reviewer should look at the change.",
		Suggestion: "Keep the rule as it was written."},
	{ID: RequiredOneofAdded, Code: "Y18", Severity: Block, NewReadsOld: true, Form: "rules",
		Title:      "oneof added that validation requires",
		Why:        "New readers refuse old events, which set none of its cases.",
		Suggestion: "Add the oneof without required."},
	{ID: RequiredOneofRemoved, Code: "Y19", Severity: Block, OldReadsNew: true, Form: "rules",
		Title:      "oneof removed that old validation requires",
		Why:        "Old readers refuse new events, which set none of its cases.",
		Suggestion: "Keep the oneof and its cases, and mark them deprecated."},
}
