package rule

// Rules about fields that are added, removed, renamed or renumbered.
const (
	FieldAddedImplicit            ID = "FIELD_ADDED_IMPLICIT"
	FieldAddedOptional            ID = "FIELD_ADDED_OPTIONAL"
	FieldAddedOfImportedType      ID = "FIELD_ADDED_OF_IMPORTED_TYPE"
	FieldAddedWithMessageInFile   ID = "FIELD_ADDED_WITH_MESSAGE_IN_FILE"
	FieldAddedWithNewFile         ID = "FIELD_ADDED_WITH_NEW_FILE"
	FieldAddedWithEnum            ID = "FIELD_ADDED_WITH_ENUM"
	FieldAddedRepeated            ID = "FIELD_ADDED_REPEATED"
	FieldAddedMap                 ID = "FIELD_ADDED_MAP"
	FieldAddedRequired            ID = "FIELD_ADDED_REQUIRED"
	FieldAddedLegacyRequired      ID = "FIELD_ADDED_LEGACY_REQUIRED"
	FieldAddedOnReservedNumber    ID = "FIELD_ADDED_ON_RESERVED_NUMBER"
	FieldAddedWithUsedName        ID = "FIELD_ADDED_WITH_USED_NAME"
	FieldRemovedReserved          ID = "FIELD_REMOVED_RESERVED"
	FieldRemovedNotReserved       ID = "FIELD_REMOVED_NOT_RESERVED"
	FieldRemovedNameNotReserved   ID = "FIELD_REMOVED_NAME_NOT_RESERVED"
	FieldRemovedNumberNotReserved ID = "FIELD_REMOVED_NUMBER_NOT_RESERVED"
	FieldRemovedRequired          ID = "FIELD_REMOVED_REQUIRED"
	FieldRemovedMap               ID = "FIELD_REMOVED_MAP"
	FieldRemovedWithMessage       ID = "FIELD_REMOVED_WITH_MESSAGE"
	FieldRenamed                  ID = "FIELD_RENAMED"
	FieldRenamedSameJSONName      ID = "FIELD_RENAMED_SAME_JSON_NAME"
	FieldJSONNameChanged          ID = "FIELD_JSON_NAME_CHANGED"
	FieldJSONNameExplicit         ID = "FIELD_JSON_NAME_EXPLICIT"
	FieldNamesSwapped             ID = "FIELD_NAMES_SWAPPED"
	FieldNumberChanged            ID = "FIELD_NUMBER_CHANGED"
	FieldNumberChangedReserved    ID = "FIELD_NUMBER_CHANGED_RESERVED"
	FieldNumberReusedOtherType    ID = "FIELD_NUMBER_REUSED_OTHER_TYPE"
	FieldNumberReusedSameType     ID = "FIELD_NUMBER_REUSED_SAME_TYPE"
)

var fieldRules = []Rule{
	{ID: FieldAddedImplicit, Code: "F01", Severity: Allow,
		Title: "implicit-presence scalar field added",
		Why:   "Readers without the field skip it."},
	{ID: FieldAddedOptional, Code: "F02", Severity: Allow,
		Title: "optional scalar field added",
		Why:   "Readers without the field skip it."},
	{ID: FieldAddedOfImportedType, Code: "F03", Severity: Allow,
		Title: "field of an existing imported message type added",
		Why:   "Readers without the field skip it."},
	{ID: FieldAddedWithMessageInFile, Code: "F04", Severity: Block, OldReadsNew: true, Form: "registry",
		Title:      "message type added to a registered file together with a field that uses it",
		Why:        "A registry at FULL compares both ways and refuses the file: seen backwards a message was removed.",
		Suggestion: "Declare the new type in a file of its own and import it."},
	{ID: FieldAddedWithNewFile, Code: "F05", Severity: Allow,
		Title: "field added together with its type in a new imported file",
		Why:   "Readers without the field skip it and the registered file gains no message."},
	{ID: FieldAddedWithEnum, Code: "F06", Severity: Allow,
		Title: "field added together with an enum type in the same file",
		Why:   "Readers without the field skip it and registries count messages only."},
	{ID: FieldAddedRepeated, Code: "F07", Severity: Allow,
		Title: "repeated field added",
		Why:   "Readers without the field skip it."},
	{ID: FieldAddedMap, Code: "F08", Severity: Allow,
		Title: "map field added",
		Why:   "Readers without the field skip it."},
	{ID: FieldAddedRequired, Code: "F09", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "proto2 required field added",
		Why:        "Readers with the field refuse every event that lacks it, and old events do.",
		Suggestion: "Add the field as optional."},
	{ID: FieldAddedLegacyRequired, Code: "F10", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "field with presence LEGACY_REQUIRED added",
		Why:        "Readers with the field refuse every event that lacks it, and old events do.",
		Suggestion: "Add the field with explicit presence."},
	{ID: FieldAddedOnReservedNumber, Code: "F11", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary",
		Title:      "field added on a reserved number",
		Why:        "Old events may carry another meaning under this number.",
		Suggestion: "Take a number that was never used."},
	{ID: FieldAddedWithUsedName, Code: "F12", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "json",
		Title:      "field added with a name that was reserved or stood for another field, in JSON at least",
		Why:        "Old events in JSON may carry another meaning under this name.",
		Suggestion: "Take a name that was never used."},
	{ID: FieldRemovedReserved, Code: "R01", Severity: Allow, Traits: BlocksAPI,
		Title:      "field removed, number and name reserved",
		Why:        "Readers without the field skip it and nothing can take its place.",
		Suggestion: "In an API keep the field and mark it deprecated."},
	{ID: FieldRemovedNotReserved, Code: "R02", Severity: Block,
		Title:      "field removed, number and name not reserved",
		Why:        "A later field could take the number or the name and read old values as its own.",
		Suggestion: "Reserve the number and the name of the field."},
	{ID: FieldRemovedNameNotReserved, Code: "R03", Severity: Block,
		Title:      "field removed, name not reserved",
		Why:        "A later field could take the name and read old JSON as its own.",
		Suggestion: "Reserve the name too."},
	{ID: FieldRemovedNumberNotReserved, Code: "R04", Severity: Block,
		Title:      "field removed, number not reserved",
		Why:        "A later field could take the number and read old values as its own.",
		Suggestion: "Reserve the number too."},
	{ID: FieldRemovedRequired, Code: "R05", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "required field removed",
		Why:        "Old readers refuse every event that lacks the field, and new events do.",
		Suggestion: "Keep the field; a fact without it is a new event type."},
	{ID: FieldRemovedMap, Code: "R06", Severity: Allow,
		Title: "map field removed, number and name reserved",
		Why:   "Readers without the field skip it and nothing can take its place."},
	{ID: FieldRemovedWithMessage, Code: "R07", Severity: Block, NewReadsOld: true, Form: "registry", Traits: FollowsFile,
		Title:      "field and its message type removed from a registered file",
		Why:        "A registry refuses the file: a message was removed.",
		Suggestion: "Keep the type until no stored event uses it, and reserve the field alone."},
	{ID: FieldRenamed, Code: "N01", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "json",
		Title:      "field renamed",
		Why:        "JSON readers look for the old name and lose the value.",
		Suggestion: "Keep the name; a field with another meaning gets a name and a number of its own."},
	{ID: FieldRenamedSameJSONName, Code: "N02", Severity: Block,
		Title:      "field renamed, JSON name pinned to the old one",
		Why:        "Everything decodes, but text format, CEL rules and generated code use the name.",
		Suggestion: "Keep the name."},
	{ID: FieldJSONNameChanged, Code: "N03", Severity: Block, OldReadsNew: true, Form: "json",
		Title:      "JSON name changed",
		Why:        "JSON readers that know only the other name lose the value.",
		Suggestion: "Keep the JSON name."},
	{ID: FieldJSONNameExplicit, Code: "N04", Severity: Allow,
		Title: "JSON name equal to the default spelled out",
		Why:   "The name on the wire is the same."},
	{ID: FieldNamesSwapped, Code: "N05", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary",
		Title:      "names of two fields swapped",
		Why:        "Binary readers silently read each value as the other.",
		Suggestion: "Keep each name at its number."},
	{ID: FieldNumberChanged, Code: "C01", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary",
		Title:      "field number changed",
		Why:        "Binary readers look for the value under the other number.",
		Suggestion: "Keep the number."},
	{ID: FieldNumberChangedReserved, Code: "C02", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary",
		Title:      "field number changed, old number reserved",
		Why:        "Binary readers look for the value under the other number.",
		Suggestion: "Keep the number."},
	{ID: FieldNumberReusedOtherType, Code: "C03", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json",
		Title:      "field number reused for a field of another type",
		Why:        "Readers misread or drop the values of the other side.",
		Suggestion: "Reserve the old number and name and take a new number."},
	{ID: FieldNumberReusedSameType, Code: "C04", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary",
		Title:      "field number reused for a new field of the same type",
		Why:        "Readers take the values of the old field for values of the new one.",
		Suggestion: "Reserve the old number and name and take a new number."},
}
