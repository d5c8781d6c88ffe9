package rule

// Rules about how new events are named and declared; comparisons never find them.
const (
	EventNameNotPastTense   ID = "EVENT_NAME_NOT_PAST_TENSE"
	EventChangeNotNamed     ID = "EVENT_CHANGE_NOT_NAMED"
	EventOptionFieldMissing ID = "EVENT_OPTION_FIELD_MISSING"
	EventTopicUnknown       ID = "EVENT_TOPIC_UNKNOWN"
	EventFieldMissing       ID = "EVENT_FIELD_MISSING"
)

var namingRules = []Rule{
	{ID: EventNameNotPastTense, Code: "A01", Severity: Warn, Traits: AboutNaming,
		Title:      "name of an event is not in the past tense",
		Why:        "An event is a fact: its name says what has happened, a command what shall happen.",
		Suggestion: "End the name with what happened, as OrderPlaced; lint.past in schemacheck.yaml takes words that are missing here."},
	{ID: EventChangeNotNamed, Code: "A02", Severity: Warn, Traits: AboutNaming,
		Title:      "event says that something changed and not what",
		Why:        "Consumers of a sparse Updated or Changed must ask elsewhere what is new, and then see a later state.",
		Suggestion: "Name the intent, as PriceRaised, or carry what changed."},
	{ID: EventOptionFieldMissing, Code: "A03", Severity: Block, Traits: AboutNaming,
		Title:      "required field of the event option is not set",
		Why:        "lint.required in schemacheck.yaml says that every event sets it.",
		Suggestion: "Set the field."},
	{ID: EventTopicUnknown, Code: "A04", Severity: Block, Traits: AboutNaming,
		Title:      "topic is not one of the known ones",
		Why:        "topics in schemacheck.yaml has all topics that events may declare; a typing error makes one without readers.",
		Suggestion: "Correct the topic, or add it to the list."},
	{ID: EventFieldMissing, Code: "A05", Severity: Block, Traits: AboutNaming,
		Title:      "event lacks a field that every event carries",
		Why:        "An event is a complete fact: what consumers must look up elsewhere they see in a later state. lint.carries in schemacheck.yaml says what that is.",
		Suggestion: "Add the field with the name from the list."},
}
