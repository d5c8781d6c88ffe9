package rule

// Rules about the custom options of events, and about head alone.
const (
	EventTopicChanged       ID = "EVENT_TOPIC_CHANGED"
	EventTypeChanged        ID = "EVENT_TYPE_CHANGED"
	EventVersionChanged     ID = "EVENT_VERSION_CHANGED"
	CustomOptionRemoved     ID = "CUSTOM_OPTION_REMOVED"
	EventOptionAdded        ID = "EVENT_OPTION_ADDED"
	CustomOptionChanged     ID = "CUSTOM_OPTION_CHANGED"
	EventVersionNotRaised   ID = "EVENT_VERSION_NOT_RAISED"
	EnumZeroNotUnspecified  ID = "ENUM_ZERO_NOT_UNSPECIFIED"
	SeveralEventsInFile     ID = "SEVERAL_EVENTS_IN_FILE"
	OtherMessageInEventFile ID = "OTHER_MESSAGE_IN_EVENT_FILE"
	EventOptionIncomplete   ID = "EVENT_OPTION_INCOMPLETE"
	EventTypeDuplicate      ID = "EVENT_TYPE_DUPLICATE"
	ValidationNotEvaluable  ID = "VALIDATION_NOT_EVALUABLE"
	SchemaIdentical         ID = "SCHEMA_IDENTICAL"
)

var eventRules = []Rule{
	{ID: EventTopicChanged, Code: "X01", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "contract",
		Title:      "topic of an event changed",
		Why:        "Consumers read the old topic.",
		Suggestion: "Keep the topic; a new topic is for a new event type."},
	{ID: EventTypeChanged, Code: "X02", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "contract",
		Title:      "event_type of an event changed",
		Why:        "Consumers dispatch by it.",
		Suggestion: "Keep the event_type; a new fact is a new event type."},
	{ID: EventVersionChanged, Code: "X03", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "contract",
		Traits:     NewestOnly,
		Title:      "version of an event changed",
		Why:        "A version passes only as one more than before, together with an addition, a deprecation or a reserved removal in the same event.",
		Suggestion: "Raise the version by one with the change that it stands for."},
	{ID: CustomOptionRemoved, Code: "X04", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "contract",
		Title:      "custom option removed from an event",
		Why:        "The option is part of the contract.",
		Suggestion: "Keep the option."},
	{ID: EventOptionAdded, Code: "X05", Severity: Warn,
		Title:      "event option added to an existing message",
		Why:        "The message starts to be published.",
		Suggestion: "Make sure that the message was never published before."},
	{ID: CustomOptionChanged, Code: "X06", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "contract",
		Title:      "custom option of an event changed",
		Why:        "Every custom option of an event is part of its contract.",
		Suggestion: "Keep the option as it is."},
	{ID: EventVersionNotRaised, Code: "X07", Severity: Warn,
		Title:      "event changed and its version stayed",
		Why:        "Additions without a default and deprecations raise the version of an event, so that consumers can tell.",
		Suggestion: "Raise the version by one, or give the new field a default."},
	{ID: EnumZeroNotUnspecified, Code: "H01", Severity: Block, Traits: NewestOnly,
		Title:      "enum without an UNSPECIFIED zero",
		Why:        "Readers show a value that they do not know, or that is not set, as the zero value.",
		Suggestion: "Give the enum a value 0 named *_UNSPECIFIED."},
	{ID: SeveralEventsInFile, Code: "H02", Severity: Block, Traits: NewestOnly,
		Title:      "several events in one registered file",
		Why:        "A registered file is the schema of one event; the message index must stay 0.",
		Suggestion: "Declare each event in a file of its own."},
	{ID: OtherMessageInEventFile, Code: "H03", Severity: Block, Traits: NewestOnly,
		Title:      "other message in the file of an event",
		Why:        "A registry at FULL lets the messages of a registered file neither grow nor shrink.",
		Suggestion: "Declare the type in a file of its own and import it."},
	{ID: EventOptionIncomplete, Code: "H04", Severity: Block, Traits: NewestOnly,
		Title:      "event option incomplete",
		Why:        "An event needs a topic, a type, a version of 1 or more, and a key that is one of its fields.",
		Suggestion: "Complete the option."},
	{ID: EventTypeDuplicate, Code: "H05", Severity: Block, Traits: NewestOnly,
		Title:      "two events of the same type name",
		Why:        "Consumers dispatch by the type name.",
		Suggestion: "Give each event a type name of its own."},
	{ID: ValidationNotEvaluable, Code: "H06", Severity: Block, Traits: NewestOnly,
		Title:      "validation rules that cannot be evaluated",
		Why:        "Every reader that validates refuses every event.",
		Suggestion: "Correct the rule; the detail says what is wrong with it."},
	{ID: SchemaIdentical, Code: "Z01", Severity: Allow,
		Title: "identical schema",
		Why:   "Nothing changed."},
}
