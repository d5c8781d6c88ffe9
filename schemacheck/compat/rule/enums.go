package rule

// Rules about oneofs and enums.
const (
	OneofCaseAdded              ID = "ONEOF_CASE_ADDED"
	OneofCaseRemoved            ID = "ONEOF_CASE_REMOVED"
	FieldToNewOneof             ID = "FIELD_TO_NEW_ONEOF"
	OptionalFieldToNewOneof     ID = "OPTIONAL_FIELD_TO_NEW_ONEOF"
	FieldOutOfOneof             ID = "FIELD_OUT_OF_ONEOF"
	SeveralFieldsToNewOneof     ID = "SEVERAL_FIELDS_TO_NEW_ONEOF"
	FieldToExistingOneof        ID = "FIELD_TO_EXISTING_ONEOF"
	OneofRenamed                ID = "ONEOF_RENAMED"
	OneofRemovedReserved        ID = "ONEOF_REMOVED_RESERVED"
	OneofAdded                  ID = "ONEOF_ADDED"
	OneofSplit                  ID = "ONEOF_SPLIT"
	OneofsMerged                ID = "ONEOFS_MERGED"
	EnumValueAdded              ID = "ENUM_VALUE_ADDED"
	EnumValueAddedClosed        ID = "ENUM_VALUE_ADDED_CLOSED"
	EnumValueRemovedReserved    ID = "ENUM_VALUE_REMOVED_RESERVED"
	EnumValueRemovedNotReserved ID = "ENUM_VALUE_REMOVED_NOT_RESERVED"
	EnumValueRenamed            ID = "ENUM_VALUE_RENAMED"
	EnumValueNumberChanged      ID = "ENUM_VALUE_NUMBER_CHANGED"
	EnumValueNumbersSwapped     ID = "ENUM_VALUE_NUMBERS_SWAPPED"
	EnumValueAddedOnReserved    ID = "ENUM_VALUE_ADDED_ON_RESERVED"
	EnumAliasAdded              ID = "ENUM_ALIAS_ADDED"
	EnumAliasAddedFirst         ID = "ENUM_ALIAS_ADDED_FIRST"
	EnumFirstValueChanged       ID = "ENUM_FIRST_VALUE_CHANGED"
	EnumValuesReordered         ID = "ENUM_VALUES_REORDERED"
	EnumOpennessChanged         ID = "ENUM_OPENNESS_CHANGED"
	EnumRenamed                 ID = "ENUM_RENAMED"
	EnumRemoved                 ID = "ENUM_REMOVED"
	EnumFileChanged             ID = "ENUM_FILE_CHANGED"
)

var enumRules = []Rule{
	{ID: OneofCaseAdded, Code: "O01", Severity: Block, OldReadsNew: true, Form: "registry", Traits: AboutOneof,
		Title:      "case added to an existing oneof",
		Why:        "Old readers see the oneof unset, and a registry at FULL refuses the file.",
		Suggestion: "Add an optional field beside the oneof."},
	{ID: OneofCaseRemoved, Code: "O02", Severity: Block, NewReadsOld: true, Form: "registry", Traits: AboutOneof,
		Title:      "case removed from a oneof that stays",
		Why:        "New readers see the oneof unset, and a registry refuses the file.",
		Suggestion: "Keep the case and mark it deprecated."},
	{ID: FieldToNewOneof, Code: "O03", Severity: Block, OldReadsNew: true, Form: "binary,json", Traits: AboutOneof,
		Title:      "field with implicit presence moved into a new oneof",
		Why:        "A zero that new writers set reads as unset with old readers.",
		Suggestion: "Leave the field outside."},
	{ID: OptionalFieldToNewOneof, Code: "O04", Severity: Block, Traits: AboutOneof,
		Title:      "optional field moved into a new oneof",
		Why:        "Everything decodes, but generated code changes.",
		Suggestion: "Leave the field outside."},
	{ID: FieldOutOfOneof, Code: "O05", Severity: Block, OldReadsNew: true, Form: "binary,json,registry",
		Traits:     AboutOneof,
		Title:      "case moved out of a oneof",
		Why:        "Old readers keep one of the fields that new writers set together.",
		Suggestion: "Leave the case inside."},
	{ID: SeveralFieldsToNewOneof, Code: "O06", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form: "binary,json,registry", Traits: AboutOneof,
		Title:      "several fields moved into a new oneof",
		Why:        "New readers keep one of the fields that old writers set together.",
		Suggestion: "Leave the fields outside."},
	{ID: FieldToExistingOneof, Code: "O07", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form: "binary,json,registry", Traits: AboutOneof,
		Title:      "field moved into an existing oneof",
		Why:        "New readers keep one of the fields that old writers set together.",
		Suggestion: "Leave the field outside."},
	{ID: OneofRenamed, Code: "O08", Severity: Block, Traits: AboutOneof,
		Title:      "oneof renamed",
		Why:        "Everything decodes, but generated code changes.",
		Suggestion: "Keep the name."},
	{ID: OneofRemovedReserved, Code: "O09", Severity: Allow, Traits: AboutOneof,
		Title: "oneof removed with all its cases, reserved",
		Why:   "As the removal of optional fields."},
	{ID: OneofAdded, Code: "O10", Severity: Allow, Traits: AboutOneof,
		Title: "oneof added with new cases only",
		Why:   "As the addition of optional fields."},
	{ID: OneofSplit, Code: "O11", Severity: Block, OldReadsNew: true, Form: "binary,json,registry", Traits: AboutOneof,
		Title:      "oneof split",
		Why:        "Old readers keep one of the fields that new writers set together.",
		Suggestion: "Keep the oneof."},
	{ID: OneofsMerged, Code: "O12", Severity: Block, NewReadsOld: true, Form: "binary,json,registry", Traits: AboutOneof,
		Title:      "oneofs merged",
		Why:        "New readers keep one of the fields that old writers set together.",
		Suggestion: "Keep the oneofs apart."},
	{ID: EnumValueAdded, Code: "E01", Severity: Allow,
		Title: "value added to an open enum",
		Why:   "Old readers keep the number and show it as unknown."},
	{ID: EnumValueAddedClosed, Code: "E02", Severity: Warn, OldReadsNew: true, Form: "binary,json",
		Title:      "value added to a closed enum",
		Why:        "Readers in Java and C++ move a value they do not know to the unknown fields.",
		Suggestion: "Make the enum open before it grows, in an event type of its own."},
	{ID: EnumValueRemovedReserved, Code: "E03", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "enum value removed, number and name reserved",
		Why:        "Stored events still carry it: JSON readers do not know the name.",
		Suggestion: "Keep the value and mark it deprecated."},
	{ID: EnumValueRemovedNotReserved, Code: "E04", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "enum value removed, number or name not reserved",
		Why:        "Stored events still carry it, and a later value could take its place.",
		Suggestion: "Keep the value and mark it deprecated."},
	{ID: EnumValueRenamed, Code: "E05", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "enum value renamed",
		Why:        "JSON readers do not know the other name.",
		Suggestion: "Keep the name."},
	{ID: EnumValueNumberChanged, Code: "E06", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary",
		Title:      "number of an enum value changed",
		Why:        "Binary readers do not know the other number.",
		Suggestion: "Keep the number."},
	{ID: EnumValueNumbersSwapped, Code: "E07", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary",
		Title:      "numbers of two enum values swapped",
		Why:        "Binary readers silently read each value as the other.",
		Suggestion: "Keep each name at its number."},
	{ID: EnumValueAddedOnReserved, Code: "E08", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "enum value added on a reserved number or name",
		Why:        "Old events may carry another meaning under it.",
		Suggestion: "Take a number and a name that were never used."},
	{ID: EnumAliasAdded, Code: "E09", Severity: Allow,
		Title: "alias added after the original name",
		Why:   "JSON writers keep writing the first name."},
	{ID: EnumAliasAddedFirst, Code: "E10", Severity: Block, OldReadsNew: true, Form: "binary,json",
		Title:      "alias added before the original name",
		Why:        "JSON writers write the first name, and old readers do not know it.",
		Suggestion: "Declare the alias after the original name."},
	{ID: EnumFirstValueChanged, Code: "E11", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "first value of an enum changed",
		Why:        "The default of fields that are not set changes.",
		Suggestion: "Keep the first value first."},
	{ID: EnumValuesReordered, Code: "E12", Severity: Allow,
		Title: "values of an open enum reordered",
		Why:   "Order does not matter beyond the first value."},
	{ID: EnumOpennessChanged, Code: "E13", Severity: Block, NewReadsOld: true, Form: "binary", Traits: BlocksAPI,
		Title:      "enum changed between OPEN and CLOSED",
		Why:        "A closed enum's readers move values that they do not know to the unknown fields.",
		Suggestion: "Keep the enum's kind."},
	{ID: EnumRenamed, Code: "E14", Severity: Block,
		Title:      "enum type renamed",
		Why:        "Everything decodes, but generated code and registries know the type by its name.",
		Suggestion: "Keep the name."},
	{ID: EnumRemoved, Code: "E15", Severity: Block, Traits: FollowsFile,
		Title:      "enum type deleted",
		Why:        "Stored schemas and other files may still refer to it.",
		Suggestion: "Keep the enum and mark it deprecated."},
	{ID: EnumFileChanged, Code: "E16", Severity: Warn, Traits: BlocksAPI,
		Title:      "enum moved to another file",
		Why:        "Its full name and its values stay; generated code moves.",
		Suggestion: "Keep the enum where it is unless all users of the generated code move too."},
}
