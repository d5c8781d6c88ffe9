package rule

// Rules about the type, the cardinality and the presence of fields.
const (
	IntegerWidened            ID = "INTEGER_WIDENED"
	IntegerNarrowed           ID = "INTEGER_NARROWED"
	Int32SignChanged          ID = "INT32_SIGN_CHANGED"
	IntegerBoolExchanged      ID = "INTEGER_BOOL_EXCHANGED"
	Int64SignChanged          ID = "INT64_SIGN_CHANGED"
	ZigZagWidthChanged        ID = "ZIGZAG_WIDTH_CHANGED"
	ZigZagEncodingChanged     ID = "ZIGZAG_ENCODING_CHANGED"
	Fixed32SignChanged        ID = "FIXED32_SIGN_CHANGED"
	Fixed64SignChanged        ID = "FIXED64_SIGN_CHANGED"
	ScalarWireTypeChanged     ID = "SCALAR_WIRE_TYPE_CHANGED"
	StringToBytes             ID = "STRING_TO_BYTES"
	BytesToString             ID = "BYTES_TO_STRING"
	IntegerToEnum             ID = "INTEGER_TO_ENUM"
	EnumToInteger             ID = "ENUM_TO_INTEGER"
	FloatDoubleExchanged      ID = "FLOAT_DOUBLE_EXCHANGED"
	ScalarTypeChanged         ID = "SCALAR_TYPE_CHANGED"
	MessageBytesExchanged     ID = "MESSAGE_BYTES_EXCHANGED"
	FieldMessageReplaced      ID = "FIELD_MESSAGE_REPLACED"
	FieldTypePackageChanged   ID = "FIELD_TYPE_PACKAGE_CHANGED"
	MessageStringExchanged    ID = "MESSAGE_STRING_EXCHANGED"
	MessageNumberExchanged    ID = "MESSAGE_NUMBER_EXCHANGED"
	ScalarWrapperExchanged    ID = "SCALAR_WRAPPER_EXCHANGED"
	EnumOtherScalarExchanged  ID = "ENUM_OTHER_SCALAR_EXCHANGED"
	FieldEnumReplaced         ID = "FIELD_ENUM_REPLACED"
	GroupMessageExchanged     ID = "GROUP_MESSAGE_EXCHANGED"
	MessageEncodingChanged    ID = "MESSAGE_ENCODING_CHANGED"
	UsedMessageBroken         ID = "USED_MESSAGE_BROKEN"
	JSTypeChanged             ID = "JSTYPE_CHANGED"
	CPPStringTypeChanged      ID = "CPP_STRING_TYPE_CHANGED"
	JavaUTF8ValidationChanged ID = "JAVA_UTF8_VALIDATION_CHANGED"
	NumberToRepeated          ID = "NUMBER_TO_REPEATED"
	OptionalNumberToRepeated  ID = "OPTIONAL_NUMBER_TO_REPEATED"
	RepeatedNumberToSingular  ID = "REPEATED_NUMBER_TO_SINGULAR"
	SingularToRepeated        ID = "SINGULAR_TO_REPEATED"
	RepeatedToSingular        ID = "REPEATED_TO_SINGULAR"
	MessageToRepeated         ID = "MESSAGE_TO_REPEATED"
	MapToOtherField           ID = "MAP_TO_OTHER_FIELD"
	OtherFieldToMap           ID = "OTHER_FIELD_TO_MAP"
	MapKeyTypeChanged         ID = "MAP_KEY_TYPE_CHANGED"
	MapKeyWidthChanged        ID = "MAP_KEY_WIDTH_CHANGED"
	MapValueTypeChanged       ID = "MAP_VALUE_TYPE_CHANGED"
	PackedChanged             ID = "PACKED_CHANGED"
	FieldBecameRequired       ID = "FIELD_BECAME_REQUIRED"
	FieldNoLongerRequired     ID = "FIELD_NO_LONGER_REQUIRED"
	PresenceToExplicit        ID = "PRESENCE_TO_EXPLICIT"
	PresenceToImplicit        ID = "PRESENCE_TO_IMPLICIT"
	PresenceFeatureChanged    ID = "PRESENCE_FEATURE_CHANGED"
	PresenceFeatureToRequired ID = "PRESENCE_FEATURE_TO_REQUIRED"
)

var typeRules = []Rule{
	{ID: IntegerWidened, Code: "T01", Severity: Block, OldReadsNew: true, Form: "binary,json",
		Title:      "integer widened",
		Why:        "Old readers cut large values off and refuse them in JSON.",
		Suggestion: "Add a field of the wider type under a new number."},
	{ID: IntegerNarrowed, Code: "T02", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "integer narrowed",
		Why:        "New readers cut large values off and refuse them in JSON.",
		Suggestion: "Add a field of the narrower type under a new number."},
	{ID: Int32SignChanged, Code: "T03", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "32-bit integer changed sign",
		Why:        "Negative values turn into large ones or are refused in JSON, and the other way round.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: IntegerBoolExchanged, Code: "T04", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "integer and bool exchanged",
		Why:        "Numbers beyond 1 turn into true, and JSON readers refuse the other form.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: Int64SignChanged, Code: "T05", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "64-bit integer changed sign",
		Why:        "Negative values turn into large ones or are refused in JSON, and the other way round.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: ZigZagWidthChanged, Code: "T06", Severity: Block, OldReadsNew: true, Form: "binary,json",
		Title:      "zigzag integer widened or narrowed",
		Why:        "The narrower side cuts large values off and refuses them in JSON.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: ZigZagEncodingChanged, Code: "T07", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,registry",
		Title:      "integer changed between plain and zigzag encoding",
		Why:        "Each side decodes other numbers than were written.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: Fixed32SignChanged, Code: "T08", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "32-bit fixed integer changed sign",
		Why:        "Negative values turn into large ones or are refused in JSON, and the other way round.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: Fixed64SignChanged, Code: "T09", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "64-bit fixed integer changed sign",
		Why:        "Negative values turn into large ones or are refused in JSON, and the other way round.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: ScalarWireTypeChanged, Code: "T10", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,registry",
		Title:      "scalar changed to another wire type",
		Why:        "Binary readers do not find the value.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: StringToBytes, Code: "T11", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "string changed to bytes",
		Why:        "Old readers refuse values that are not UTF-8, and JSON holds base64 on one side only.",
		Suggestion: "Add a bytes field under a new number."},
	{ID: BytesToString, Code: "T12", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "bytes changed to string",
		Why:        "New readers refuse values that are not UTF-8, and JSON holds base64 on one side only.",
		Suggestion: "Add a string field under a new number."},
	{ID: IntegerToEnum, Code: "T13", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "json",
		Title:      "integer changed to enum",
		Why:        "JSON of new writers holds names that old readers refuse.",
		Suggestion: "Add an enum field under a new number."},
	{ID: EnumToInteger, Code: "T14", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "json",
		Title:      "enum changed to integer",
		Why:        "JSON of old writers holds names that new readers refuse.",
		Suggestion: "Add an integer field under a new number."},
	{ID: FloatDoubleExchanged, Code: "T15", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "float and double exchanged",
		Why:        "Binary readers do not find the value, and large numbers are refused in JSON.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: ScalarTypeChanged, Code: "T16", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "scalar changed to a scalar of another form",
		Why:        "Binary readers misread or lose the value and JSON readers refuse it.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: MessageBytesExchanged, Code: "T17", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "message and bytes exchanged",
		Why:        "JSON readers refuse the other form and binary readers take any bytes for a message.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: FieldMessageReplaced, Code: "T18", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "registry",
		Title:      "message type replaced by another one",
		Why:        "The type's name is part of the contract, and a registry refuses the change.",
		Suggestion: "Keep the type; add a field of the other type under a new number."},
	{ID: FieldTypePackageChanged, Code: "T19", Severity: Block,
		Title:      "message type replaced by one of the same name in another package",
		Why:        "Everything decodes, but Any, generated code and registries know the type by its full name.",
		Suggestion: "Keep the type where it is."},
	{ID: MessageStringExchanged, Code: "T20", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "message and string exchanged",
		Why:        "Binary readers refuse or misread the value and JSON readers expect another form.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: MessageNumberExchanged, Code: "T21", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "message and number exchanged",
		Why:        "Binary readers lose the value and JSON readers refuse it.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: ScalarWrapperExchanged, Code: "T22", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "scalar and its wrapper message exchanged",
		Why:        "Binary readers refuse or misread the value.",
		Suggestion: "Use an optional scalar where unset matters."},
	{ID: EnumOtherScalarExchanged, Code: "T23", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "enum exchanged with a type that is no integer",
		Why:        "Binary readers lose the value and JSON readers refuse it.",
		Suggestion: "Add a field of the other type under a new number."},
	{ID: FieldEnumReplaced, Code: "T24", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "enum type replaced by another one",
		Why:        "Values change their names or get lost.",
		Suggestion: "Keep the type; add a field of the other type under a new number."},
	{ID: GroupMessageExchanged, Code: "T25", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,registry",
		Title:      "group and length-delimited message exchanged",
		Why:        "Binary readers do not find the value.",
		Suggestion: "Add a field of the other encoding under a new number."},
	{ID: MessageEncodingChanged, Code: "T26", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary",
		Title:      "message encoding changed between LENGTH_PREFIXED and DELIMITED",
		Why:        "Binary readers do not find the value.",
		Suggestion: "Keep the encoding."},
	{ID: UsedMessageBroken, Code: "T27", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form: "binary,json,registry", Traits: FromUsedType,
		Title:      "message used by an event in the same file broke",
		Why:        "The event is encoded with the changed message.",
		Suggestion: "Undo the change named at the message."},
	{ID: JSTypeChanged, Code: "T28", Severity: Warn, Traits: BlocksAPI,
		Title:      "jstype changed",
		Why:        "Generated JavaScript changes its type.",
		Suggestion: "Keep the option."},
	{ID: CPPStringTypeChanged, Code: "T29", Severity: Warn, Traits: BlocksAPI,
		Title:      "C++ string type changed",
		Why:        "Generated C++ code changes its type.",
		Suggestion: "Keep the option or feature."},
	{ID: JavaUTF8ValidationChanged, Code: "T30", Severity: Warn, Traits: BlocksAPI,
		Title:      "Java UTF-8 validation changed",
		Why:        "Generated Java code refuses other texts than before.",
		Suggestion: "Keep the feature."},
	{ID: NumberToRepeated, Code: "L01", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "singular number became repeated",
		Why:        "Old readers misread a packed list and JSON readers refuse it.",
		Suggestion: "Add a repeated field under a new number."},
	{ID: OptionalNumberToRepeated, Code: "L02", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "optional number became repeated",
		Why:        "Old readers misread a packed list and JSON readers refuse it.",
		Suggestion: "Add a repeated field under a new number."},
	{ID: RepeatedNumberToSingular, Code: "L03", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "repeated number became singular",
		Why:        "New readers keep one value of a list at most and JSON readers refuse it.",
		Suggestion: "Add a singular field under a new number."},
	{ID: SingularToRepeated, Code: "L04", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "singular string, bytes or enum became repeated",
		Why:        "Old readers keep the last value of a list and JSON readers refuse it.",
		Suggestion: "Add a repeated field under a new number."},
	{ID: RepeatedToSingular, Code: "L05", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "repeated string, bytes, enum or message became singular",
		Why:        "New readers keep the last value of a list and JSON readers refuse it.",
		Suggestion: "Add a singular field under a new number."},
	{ID: MessageToRepeated, Code: "L06", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Title:      "singular message became repeated",
		Why:        "Old readers merge a list into one message and JSON readers refuse it.",
		Suggestion: "Add a repeated field under a new number."},
	{ID: MapToOtherField, Code: "L07", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json,registry",
		Title:      "map became a field that is none",
		Why:        "JSON readers refuse the other form and duplicate keys survive.",
		Suggestion: "Add a field of the other form under a new number."},
	{ID: OtherFieldToMap, Code: "L08", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json,registry",
		Title:      "field became a map",
		Why:        "JSON readers refuse the other form and duplicate keys vanish.",
		Suggestion: "Add a map field under a new number."},
	{ID: MapKeyTypeChanged, Code: "L09", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "map key type changed to one of another form",
		Why:        "Keys are misread or refused.",
		Suggestion: "Add a map field under a new number."},
	{ID: MapKeyWidthChanged, Code: "L10", Severity: Block, OldReadsNew: true, Form: "binary,json",
		Title:      "map key type changed its width or sign",
		Why:        "Large or negative keys are misread or refused by one side.",
		Suggestion: "Add a map field under a new number."},
	{ID: MapValueTypeChanged, Code: "L11", Severity: Block, OldReadsNew: true, NewReadsOld: true,
		Form:       "binary,json,registry",
		Title:      "map value type changed",
		Why:        "Values are misread or refused.",
		Suggestion: "Add a map field under a new number."},
	{ID: PackedChanged, Code: "L12", Severity: Allow,
		Title: "packed encoding changed",
		Why:   "Parsers accept both encodings."},
	{ID: FieldBecameRequired, Code: "L13", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "field became required",
		Why:        "New readers refuse old events that lack the field.",
		Suggestion: "Keep the field optional."},
	{ID: FieldNoLongerRequired, Code: "L14", Severity: Block, OldReadsNew: true, Form: "binary,json",
		Title:      "field is no longer required",
		Why:        "Old readers refuse new events that lack the field.",
		Suggestion: "Keep the field required; a fact without it is a new event type."},
	{ID: PresenceToExplicit, Code: "P01", Severity: Warn, OldReadsNew: true, Form: "binary,json", Traits: BlocksAPI,
		Title:      "presence changed from implicit to explicit",
		Why:        "A zero that new writers set reads as unset with old readers.",
		Suggestion: "Keep the presence unless no reader distinguishes unset from zero."},
	{ID: PresenceToImplicit, Code: "P02", Severity: Warn, NewReadsOld: true, Form: "binary,json", Traits: BlocksAPI,
		Title:      "presence changed from explicit to implicit",
		Why:        "A zero that old writers set reads as unset with new readers.",
		Suggestion: "Keep the presence unless no reader distinguishes unset from zero."},
	{ID: PresenceFeatureChanged, Code: "P03", Severity: Warn, NewReadsOld: true, Form: "binary,json", Traits: BlocksAPI,
		Title:      "presence feature changed between EXPLICIT and IMPLICIT",
		Why:        "A zero that was set reads as unset on one side.",
		Suggestion: "Keep the presence unless no reader distinguishes unset from zero."},
	{ID: PresenceFeatureToRequired, Code: "P04", Severity: Block, NewReadsOld: true, Form: "binary,json",
		Title:      "presence feature changed to LEGACY_REQUIRED",
		Why:        "New readers refuse old events that lack the field.",
		Suggestion: "Keep explicit presence."},
}
