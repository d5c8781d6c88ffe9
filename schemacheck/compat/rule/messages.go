package rule

// Rules about messages, files, packages, imports, defaults, extensions, features and reservations.
const (
	MessageRenamed               ID = "MESSAGE_RENAMED"
	EventRenamed                 ID = "EVENT_RENAMED"
	MessageRemoved               ID = "MESSAGE_REMOVED"
	MessageFileChanged           ID = "MESSAGE_FILE_CHANGED"
	MessageAddedToRegisteredFile ID = "MESSAGE_ADDED_TO_REGISTERED_FILE"
	MessageAddedBeforeOthers     ID = "MESSAGE_ADDED_BEFORE_OTHERS"
	MessagesReordered            ID = "MESSAGES_REORDERED"
	NestedMessageMoved           ID = "NESTED_MESSAGE_MOVED"
	NestedMessageRemoved         ID = "NESTED_MESSAGE_REMOVED"
	NestedMessageAdded           ID = "NESTED_MESSAGE_ADDED"
	EventAdded                   ID = "EVENT_ADDED"
	FileRemoved                  ID = "FILE_REMOVED"
	FileRenamed                  ID = "FILE_RENAMED"
	PackageChanged               ID = "PACKAGE_CHANGED"
	ImportPathChanged            ID = "IMPORT_PATH_CHANGED"
	ImportedTypeBroken           ID = "IMPORTED_TYPE_BROKEN"
	ImportedMessageFieldAdded    ID = "IMPORTED_MESSAGE_FIELD_ADDED"
	SyntaxChanged                ID = "SYNTAX_CHANGED"
	SyntaxToEdition              ID = "SYNTAX_TO_EDITION"
	FileOptionChanged            ID = "FILE_OPTION_CHANGED"
	FormattingChanged            ID = "FORMATTING_CHANGED"
	DeprecatedAdded              ID = "DEPRECATED_ADDED"
	DescriptorAccessorRemoved    ID = "DESCRIPTOR_ACCESSOR_REMOVED"
	DefaultChanged               ID = "DEFAULT_CHANGED"
	DefaultAddedOrRemoved        ID = "DEFAULT_ADDED_OR_REMOVED"
	ExtensionRangeRemoved        ID = "EXTENSION_RANGE_REMOVED"
	ExtensionRangeNarrowed       ID = "EXTENSION_RANGE_NARROWED"
	ExtensionRemoved             ID = "EXTENSION_REMOVED"
	ExtensionChanged             ID = "EXTENSION_CHANGED"
	FieldToExtension             ID = "FIELD_TO_EXTENSION"
	UTF8ValidationEnabled        ID = "UTF8_VALIDATION_ENABLED"
	UTF8ValidationDisabled       ID = "UTF8_VALIDATION_DISABLED"
	JSONFormatChanged            ID = "JSON_FORMAT_CHANGED"
	RepeatedEncodingChanged      ID = "REPEATED_ENCODING_CHANGED"
	ReservedNumberRemoved        ID = "RESERVED_NUMBER_REMOVED"
	ReservedNameRemoved          ID = "RESERVED_NAME_REMOVED"
	ReservedRangeNarrowed        ID = "RESERVED_RANGE_NARROWED"
	EnumReservationNarrowed      ID = "ENUM_RESERVATION_NARROWED"
	ReservationAdded             ID = "RESERVATION_ADDED"
)

var messageRules = []Rule{
	{ID: MessageRenamed, Code: "M01", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "registry",
		Title:      "message type renamed",
		Why:        "Any, generated code and registries know the type by its name.",
		Suggestion: "Keep the name."},
	{ID: EventRenamed, Code: "M02", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "registry",
		Title:      "event message renamed",
		Why:        "The name is the event's identity in subjects and in Any.",
		Suggestion: "Keep the name; a new fact is a new event in a file of its own."},
	{ID: MessageRemoved, Code: "M03", Severity: Block, NewReadsOld: true, Form: "registry", Traits: FollowsFile,
		Title:      "message deleted",
		Why:        "Readers of stored events need it, and a registry refuses the file.",
		Suggestion: "Keep the message and mark it deprecated."},
	{ID: MessageFileChanged, Code: "M04", Severity: Block, NewReadsOld: true, Form: "registry",
		Title:      "message moved to another file",
		Why:        "A registry refuses the file: a message was removed.",
		Suggestion: "Keep the message where it is."},
	{ID: MessageAddedToRegisteredFile, Code: "M05", Severity: Block, OldReadsNew: true, Form: "registry",
		Title:      "message added to a registered file",
		Why:        "A registry at FULL refuses the file: seen backwards a message was removed.",
		Suggestion: "Declare the message in a file of its own."},
	{ID: MessageAddedBeforeOthers, Code: "M06", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "registry",
		Title:      "message added before another one in a registered file",
		Why:        "The message index in front of stored records moves.",
		Suggestion: "Declare the message in a file of its own."},
	{ID: MessagesReordered, Code: "M07", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "registry",
		Title:      "messages of a registered file reordered",
		Why:        "The message index in front of stored records moves.",
		Suggestion: "Keep the order."},
	{ID: NestedMessageMoved, Code: "M08", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "registry",
		Title:      "nested message moved to another level",
		Why:        "Its full name and its message index change.",
		Suggestion: "Keep the message where it is."},
	{ID: NestedMessageRemoved, Code: "M09", Severity: Block, NewReadsOld: true, Form: "registry", Traits: FollowsFile,
		Title:      "nested message deleted",
		Why:        "A registry refuses the file: a message was removed.",
		Suggestion: "Keep the message and mark it deprecated."},
	{ID: NestedMessageAdded, Code: "M10", Severity: Block, OldReadsNew: true, Form: "registry",
		Title:      "nested message added to a registered file",
		Why:        "A registry at FULL refuses the file: seen backwards a message was removed.",
		Suggestion: "Declare the message in a file of its own."},
	{ID: EventAdded, Code: "M11", Severity: Allow,
		Title: "event added in a new file of its own",
		Why:   "A new fact is a new file, type and subject."},
	{ID: FileRemoved, Code: "M12", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "file deleted",
		Why:        "Readers of stored events need its messages.",
		Suggestion: "Keep the file and mark its messages deprecated."},
	{ID: FileRenamed, Code: "M13", Severity: Warn, Traits: BlocksAPI,
		Title:      "file renamed with its content",
		Why:        "All full names stay; generated code moves, and in a registry the name of the reference changes.",
		Suggestion: "Keep the path, or register the new one before the events that import it."},
	{ID: PackageChanged, Code: "K01", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "registry",
		Title:      "package changed in place",
		Why:        "Every full name changes, and with it the event's identity.",
		Suggestion: "Keep the file and add a new one for the new package."},
	{ID: ImportPathChanged, Code: "K02", Severity: Warn, Traits: BlocksAPI,
		Title:      "import path of a dependency changed",
		Why:        "The reference's name in the registry changes.",
		Suggestion: "Keep the path, or register the new one before the event."},
	{ID: ImportedTypeBroken, Code: "K03", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form: "binary,json,registry", Traits: FromUsedType,
		Title:      "message or enum in an imported file broke",
		Why:        "The event is encoded with the changed type.",
		Suggestion: "Undo the change named at the type."},
	{ID: ImportedMessageFieldAdded, Code: "K04", Severity: Allow,
		Title: "imported message gains a field",
		Why:   "Readers without the field skip it."},
	{ID: SyntaxChanged, Code: "K05", Severity: Block, NewReadsOld: true, Form: "binary",
		Title:      "syntax changed between proto2 and proto3",
		Why:        "UTF-8 checks, closed enums and packing change.",
		Suggestion: "Keep the syntax, or move to an edition with the same features."},
	{ID: SyntaxToEdition, Code: "K06", Severity: Allow,
		Title: "syntax changed to an edition with the same features",
		Why:   "Nothing changes on the wire."},
	{ID: FileOptionChanged, Code: "K07", Severity: Warn, Traits: BlocksAPI,
		Title:      "file option of generated code changed",
		Why:        "Generated code moves.",
		Suggestion: "Keep the option unless all users of the generated code move too."},
	{ID: FormattingChanged, Code: "K08", Severity: Allow,
		Title: "comments, white space or order of fields changed",
		Why:   "Nothing changes on the wire."},
	{ID: DeprecatedAdded, Code: "K09", Severity: Allow,
		Title: "deprecated option added",
		Why:   "Nothing changes on the wire."},
	{ID: DescriptorAccessorRemoved, Code: "K10", Severity: Warn, Traits: BlocksAPI,
		Title:      "standard descriptor accessor of a message removed",
		Why:        "Generated code loses a method.",
		Suggestion: "Keep the accessor unless no code uses it."},
	{ID: DefaultChanged, Code: "D01", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "default value changed",
		Why:        "Fields that are not set read differently on both sides.",
		Suggestion: "Keep the default."},
	{ID: DefaultAddedOrRemoved, Code: "D02", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "default value added or removed",
		Why:        "Fields that are not set read differently on both sides.",
		Suggestion: "Keep the field without a default."},
	{ID: ExtensionRangeRemoved, Code: "D03", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "extension range removed",
		Why:        "Extensions in stored events are no longer known.",
		Suggestion: "Keep the range."},
	{ID: ExtensionRangeNarrowed, Code: "D04", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "extension range narrowed",
		Why:        "Extensions in stored events are no longer known.",
		Suggestion: "Keep the range."},
	{ID: ExtensionRemoved, Code: "D05", Severity: Block, NewReadsOld: true, Form: "binary,json", Traits: FollowsFile,
		Title:      "extension removed",
		Why:        "The value in stored events is no longer known.",
		Suggestion: "Keep the extension and mark it deprecated."},
	{ID: ExtensionChanged, Code: "D06", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "extension changed its name, number, type or cardinality",
		Why:        "Readers misread or lose the value.",
		Suggestion: "Add an extension under a new number."},
	{ID: FieldToExtension, Code: "D07", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "field turned into an extension of the same number",
		Why:        "Readers without the extension lose the value.",
		Suggestion: "Keep the field."},
	{ID: UTF8ValidationEnabled, Code: "U01", Severity: Block, NewReadsOld: true, Form: "binary",
		Title:      "UTF-8 validation switched on",
		Why:        "New readers refuse old events with text that is not UTF-8.",
		Suggestion: "Keep the feature."},
	{ID: UTF8ValidationDisabled, Code: "U02", Severity: Block, OldReadsNew: true, Form: "binary",
		Title:      "UTF-8 validation switched off",
		Why:        "Old readers refuse new events with text that is not UTF-8.",
		Suggestion: "Keep the feature."},
	{ID: JSONFormatChanged, Code: "U03", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "json",
		Title:      "json_format changed",
		Why:        "JSON is not guaranteed on one side.",
		Suggestion: "Keep the feature."},
	{ID: RepeatedEncodingChanged, Code: "U04", Severity: Allow,
		Title: "repeated_field_encoding changed",
		Why:   "Parsers accept both encodings."},
	{ID: ReservedNumberRemoved, Code: "V01", Severity: Block,
		Title:      "reserved number deleted",
		Why:        "A later field could take the number and read old values as its own.",
		Suggestion: "Keep the reservation."},
	{ID: ReservedNameRemoved, Code: "V02", Severity: Block,
		Title:      "reserved name deleted",
		Why:        "A later field could take the name and read old JSON as its own.",
		Suggestion: "Keep the reservation."},
	{ID: ReservedRangeNarrowed, Code: "V03", Severity: Block,
		Title:      "reserved range narrowed",
		Why:        "A later field could take a number of it and read old values as its own.",
		Suggestion: "Keep the reservation."},
	{ID: EnumReservationNarrowed, Code: "V04", Severity: Block,
		Title:      "reservation of an enum deleted or narrowed",
		Why:        "A later value could take the number or the name.",
		Suggestion: "Keep the reservation."},
	{ID: ReservationAdded, Code: "V05", Severity: Allow,
		Title: "reservation added",
		Why:   "Nothing used it."},
}
