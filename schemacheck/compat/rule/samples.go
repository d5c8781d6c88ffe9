package rule

// Rules about what generated events show.
const (
	SampleReadDifferently ID = "SAMPLE_READ_DIFFERENTLY"
	SampleNotDecoded      ID = "SAMPLE_NOT_DECODED"
	SampleRefused         ID = "SAMPLE_REFUSED"
	SamplesNotMade        ID = "SAMPLES_NOT_MADE"
	SampleZeroReadAsUnset ID = "SAMPLE_ZERO_READ_AS_UNSET"
	SamplesIncomplete     ID = "SAMPLES_INCOMPLETE"
	WellKnownTypeAltered  ID = "WELL_KNOWN_TYPE_ALTERED"
)

var sampleRules = []Rule{
	{ID: SampleReadDifferently, Code: "W01", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Traits:     FromSample,
		Title:      "sample read differently",
		Why:        "A generated event that one side wrote has another value on the other side.",
		Suggestion: "Undo the change, or make it a new event type."},
	{ID: SampleNotDecoded, Code: "W02", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Traits:     FromSample,
		Title:      "sample not decoded",
		Why:        "A generated event that one side wrote cannot be decoded by the other side.",
		Suggestion: "Undo the change, or make it a new event type."},
	{ID: SampleRefused, Code: "W03", Severity: Block, OldReadsNew: true, NewReadsOld: true, Form: "rules",
		Traits:     FromSample,
		Title:      "sample refused by validation",
		Why:        "A generated event that is valid for its writer is refused by the other side's rules.",
		Suggestion: "Undo the change, or make it a new event type."},
	{ID: SamplesNotMade, Code: "W04", Severity: Warn, Traits: NotExecuted,
		Title:      "event not executed",
		Why:        "No sample that passes the writer's rules could be made, so nothing was tried.",
		Suggestion: "Give the rules that only few values pass an example."},
	{ID: SampleZeroReadAsUnset, Code: "W05", Severity: Warn, OldReadsNew: true, NewReadsOld: true, Form: "binary,json",
		Traits:     FromSample,
		Title:      "zero read as unset",
		Why:        "A generated event in which one side set a zero reads as unset on the other side, or the other way round.",
		Suggestion: "Keep the presence unless no reader distinguishes unset from zero."},
	{ID: SamplesIncomplete, Code: "W06", Severity: Warn, Traits: NotExecuted,
		Title:      "event executed in part",
		Why:        "The event is too large to try all values of its fields, so a break that only execution shows may be missed.",
		Suggestion: "Split the type, or look at the rules' findings with more care."},
	{ID: WellKnownTypeAltered, Code: "W07", Severity: Warn, Traits: NotExecuted,
		Title:      "well-known type altered",
		Why:        "Runtimes know the type by its name and read it as the one of protobuf, so nothing was tried.",
		Suggestion: "Import the file that comes with protobuf, and give a type of other fields a name of its own."},
}
