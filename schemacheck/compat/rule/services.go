package rule

// Rules about services and their calls.
const (
	RPCAdded                  ID = "RPC_ADDED"
	RPCRemoved                ID = "RPC_REMOVED"
	RPCRenamed                ID = "RPC_RENAMED"
	RPCRequestTypeChanged     ID = "RPC_REQUEST_TYPE_CHANGED"
	RPCResponseTypeChanged    ID = "RPC_RESPONSE_TYPE_CHANGED"
	RPCServerStreamingChanged ID = "RPC_SERVER_STREAMING_CHANGED"
	RPCClientStreamingChanged ID = "RPC_CLIENT_STREAMING_CHANGED"
	RPCIdempotencyLowered     ID = "RPC_IDEMPOTENCY_LOWERED"
	RPCIdempotencyRaised      ID = "RPC_IDEMPOTENCY_RAISED"
	ServiceRemoved            ID = "SERVICE_REMOVED"
)

var serviceRules = []Rule{
	{ID: RPCAdded, Code: "S01", Severity: Allow,
		Title: "rpc added",
		Why:   "Old clients do not call it."},
	{ID: RPCRemoved, Code: "S02", Severity: Block,
		Title:      "rpc removed",
		Why:        "Its callers get unimplemented.",
		Suggestion: "Keep the rpc and mark it deprecated."},
	{ID: RPCRenamed, Code: "S03", Severity: Block,
		Title:      "rpc renamed",
		Why:        "Callers of the old name get unimplemented.",
		Suggestion: "Keep the rpc; add one of the new name beside it."},
	{ID: RPCRequestTypeChanged, Code: "S04", Severity: Block,
		Title:      "request type of an rpc changed",
		Why:        "Callers send the other type.",
		Suggestion: "Add an rpc of a new name."},
	{ID: RPCResponseTypeChanged, Code: "S05", Severity: Block,
		Title:      "response type of an rpc changed",
		Why:        "Callers read the other type.",
		Suggestion: "Add an rpc of a new name."},
	{ID: RPCServerStreamingChanged, Code: "S06", Severity: Block,
		Title:      "server streaming changed",
		Why:        "The protocol of the call changes.",
		Suggestion: "Add an rpc of a new name."},
	{ID: RPCClientStreamingChanged, Code: "S07", Severity: Block,
		Title:      "client streaming changed",
		Why:        "The protocol of the call changes.",
		Suggestion: "Add an rpc of a new name."},
	{ID: RPCIdempotencyLowered, Code: "S08", Severity: Block,
		Title:      "idempotency level lowered",
		Why:        "Clients that call with GET get refused.",
		Suggestion: "Keep the level."},
	{ID: RPCIdempotencyRaised, Code: "S09", Severity: Warn,
		Title:      "idempotency level raised",
		Why:        "Clients may start to repeat the call or to use GET.",
		Suggestion: "Make sure that the handler has no side effects."},
	{ID: ServiceRemoved, Code: "S10", Severity: Block, Traits: FollowsFile,
		Title:      "service removed",
		Why:        "Its callers get unimplemented.",
		Suggestion: "Keep the service and mark it deprecated."},
}
