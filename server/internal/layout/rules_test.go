package layout

// A rule says who may import what. Patterns are import paths, those of the module
// without its prefix; a trailing "/..." includes what lies below.
type rule struct {
	imports []string // what the rule is about
	only    []string // packages that may import it
	except  bool     // only lists those that may not
	tests   bool     // holds for test files too
	why     string
}

var rules = []rule{
	{
		imports: []string{"github.com/cockroachdb/pebble/v2/..."}, only: []string{"server/store/embedded/..."}, tests: true,
		why: "engines are replaceable: what they are made of stays in them",
	},
	{
		imports: []string{"github.com/aws/aws-sdk-go-v2/...", "github.com/aws/smithy-go/..."},
		only:    []string{"server/store/dynamo/...", "server/backend", "server/backup/bucket"},
		why:     "as Pebble",
	},
	{
		imports: []string{"github.com/twmb/franz-go/pkg/kgo/...", "github.com/twmb/franz-go/pkg/kadm/..."},
		only:    []string{"server/kafka/...", "server/backend"},
		why:     "one place knows how Kafka is spoken to",
	},
	{
		imports: []string{"github.com/twmb/franz-go/pkg/kfake/..."},
		only:    []string{"server/kafka/kafkatest", "server/kafka/logdir/oldbroker"},
		why:     "a broker made for tests has no place in a program",
	},
	{
		imports: []string{"server/kafka/logdir/oldbroker"}, only: []string{"server/kafka/logdir", "server/eventlog/upgrade"},
		tests: true, why: "the broker of earlier releases is for tests of what reads its files",
	},
	{
		imports: []string{"github.com/twmb/franz-go/pkg/sr/..."},
		only:    []string{"server/event", "server/registry", "schemacheck/internal/registryclient"},
		why:     "one format on the wire",
	},
	{
		imports: []string{"github.com/redis/go-redis/v9/..."}, only: []string{"server/routing", "server/backend"},
		why: "nothing that must last is kept in Redis",
	},
	{
		imports: []string{"server/routing"},
		only: []string{"server/backend", "server/link", "server/routing/routingtest", "server/internal/app",
			"workers/internal/cli", "workers/internal/jobs", "workers/observe"},
		why: "who is where is asked by links and by what puts processes together, never by the rules of chats",
	},
	{
		imports: []string{"server/..."},
		only: []string{"server/store", "server/event", "server/auth", "server/infra/lifecycle", "server/infra/telemetry",
			"server/infra/config", "server/infra/memory"}, except: true,
		why: "these stand at the bottom",
	},
	{
		imports: []string{"server/store/embedded", "server/store/dynamo"},
		only: []string{"server/backend", "server/store/embedded/raw", "server/store/embedded/records",
			"server/store/embedded/embeddedtest", "server/store/dynamo/dynamotest"},
		why: "only the backend package knows the modes",
	},
	{
		imports: []string{"server/internal/..."}, only: []string{"server", "server/internal/..."},
		why: "what is private to the server's binary stays so",
	},
	{
		imports: []string{"workers/..."}, only: []string{"workers", "workers/...", "server/internal/app"},
		why: "the embedded server runs the workers' parts; nothing else in it knows them",
	},
	{
		imports: []string{"server/internal/app"}, only: []string{"server"}, tests: true,
		why: "main builds the app, the app builds the API, nothing looks back up",
	},
	{
		imports: []string{"server/infra/testkit"}, only: []string{}, why: "what ends a test has no place in a program",
	},
	{
		imports: []string{"server/infra/lifecycle/lifecycletest"}, only: []string{}, why: "as testkit",
	},
	{
		imports: []string{"server/internal/modeltest"}, only: []string{}, why: "a model of clients has no place in a program",
	},
	{
		imports: []string{"server/internal/faultydisk", "github.com/hanwen/go-fuse/v2/..."},
		only:    []string{"server/internal/faultydisk"}, why: "a disk with faults has no place in a program",
	},
	{
		imports: []string{"server/internal/api"}, tests: true,
		only: []string{"server/internal/app", "server/internal/rest", "server/internal/topicrpc",
			"server/internal/identitymodule", "server/internal/docsite",
			"server/internal/authapi", "server/internal/userapi", "server/internal/serviceapi",
			"server/client/topic", "server/internal/modeltest"},
		why: "as the app; examples of the client and its model run against it, documents list its errors",
	},
	{
		imports: []string{"server/internal/api", "server/delivery", "server/view"},
		only:    []string{"server/chat", "server/store/...", "server/client"}, except: true,
		why: "the rules of chats know no reader and no transport",
	},
	{
		imports: []string{"github.com/yuin/goldmark/..."}, only: []string{"server/internal/docsite"}, tests: true,
		why: "one place knows how Markdown becomes a page",
	},
	{
		imports: []string{"connectrpc.com/...", "net/http"},
		only: []string{ // the engine of DynamoDB speaks HTTP itself
			"server/chat", "server/store", "server/store/table", "server/store/storetest", "server/store/faulty",
			"server/store/embedded",
			"server/event", "server/view", "server/delivery",
		},
		except: true,
		why:    "the inside knows no transport",
	},
	{
		imports: []string{"server/chat", "server/store/...", "server/view", "server/delivery", "server/internal/..."},
		only:    []string{"server/client"}, except: true,
		why: "the client knows the server by its contracts only",
	},
	{
		imports: []string{"server/...", "gen/..."}, only: []string{"schemacheck/..."}, except: true, tests: true,
		why: "the gate must work when they are broken",
	},
}

// A bound lists all that a package may import of the module, tests aside: they
// need engines, clocks and clients.
type bound struct {
	pkg string
	may []string
	why string
}

var loadTest = []string{"server/load/...", "server/infra/loopback", "server/infra/wait", "gen/..."}

const contractsOnly = "a load test knows the server by its contracts only, earlier versions too"

var bounds = []bound{
	{"server/infra/...", []string{"server/infra/..."}, "infrastructure knows nothing of what it serves"},
	{"server", []string{"server/internal/app"}, "main is signals and an exit code"},
	{"server/store", nil, "the contract stands on nothing"},
	{"server/infra/pace", []string{"server/infra/wait"}, "how fast something goes knows no work"},
	{"server/history", nil, "the form of a place knows no store"},
	{"server/infra/durable", nil, "how a file gets to its place does not depend on what it is"},
	{"server/infra/bounded", nil, "which entry of a cache makes room does not depend on what it caches"},
	{"server/infra/testkit", nil, "the tests of every package may stand on it"},
	{"server/infra/lifecycle/lifecycletest", []string{"server/infra/lifecycle"}, "as testkit: it knows the contract only"},
	{
		"server/load", []string{"server/auth", "server/infra/cmdline", "server/infra/config", "server/load/..."},
		"the load test's command line reads the server's settings and key",
	},
	{"server/load/scenario", loadTest, contractsOnly},
	{"server/load/gates/...", loadTest, contractsOnly},
	{"server/load/rpc", loadTest, contractsOnly},
	{"server/load/stream", loadTest, contractsOnly},
	{"server/load/probe", loadTest, contractsOnly},
	{"server/load/figure", nil, "a report knows no server"},
	{"server/store/table/people", []string{"server/store", "server/store/table"}, "rows know the contract and no engine"},
	{
		"server/identity/revocation", []string{"server/auth", "server/chat/commit", "server/store",
			"server/store/table/people", "server/infra/wait"},
		"who revokes knows rows and whom tokens are of, and neither streams nor transports",
	},
	{
		"server/identity/service", []string{"server/auth", "server/chat/commit", "server/store", "server/store/table",
			"server/store/table/people", "server/infra/wait"},
		"service accounts know rows, and not who administers them",
	},
	{
		"server/identity/parts", []string{"server/audit", "server/auth", "server/identity/...", "server/store"},
		"the words of one package become those of another",
	},
	{"server/identity/issuer", []string{"server/auth"}, "who is trusted knows no rows"},
	{
		"server/internal/serviceapi", []string{"server/auth", "server/identity/service", "server/infra/rpc",
			"server/internal/api", "gen/..."},
		"an API service knows its use case",
	},
	{
		"server/client/tail", []string{"server/client/bearer", "server/history", "server/infra/wait", "gen/..."},
		"who follows a stream keeps no copy of the chats",
	},
	{
		"server/internal/terminal/...", []string{"server/client/...", "server/internal/terminal/...", "server/infra/cmdline",
			"server/infra/loopback", "gen/..."},
		"people at a terminal know the server by its contracts only",
	},
	{"server/internal/webpage", nil, "how a page is served knows no page"},
	{
		"server/internal/docsite", []string{"server/docs", "server/deploy", "server/internal/webpage", "gen/..."},
		"documents are files: they know no server",
	},
	{"server/docs", nil, "documents are files"},
	{"server/deploy", nil, "documents are files"},
	{"server/infra/rpc", nil, "what surrounds every service knows none"},
	{"server/infra/certificate", nil, "files know no listener"},
	{"server/limit", nil, "limits are rules and buckets; what is charged is said elsewhere"},
	{
		"server/internal/ratelimit", []string{"server/auth", "server/infra/bounded", "server/infra/edge", "server/limit",
			"gen/..."},
		"what calls cost is known by their contracts, not by what serves them",
	},
	{
		"server/limit/limitview", []string{"server/identity/admin", "server/limit"},
		"what operators see of limits knows no transport",
	},
	{"server/store/table", []string{"server/store"}, "rows know the contract and no engine"},
	{"server/topic/refusal", nil, "who refuses and who answers share it"},
	{
		"server/topic/internal/machine", []string{"server/commitlog", "gen/..."},
		"the machine knows batches and filters, and neither stores nor clocks",
	},
	{
		"server/topic/internal/storage", []string{"server/topic/refusal", "server/store", "server/store/table", "gen/..."},
		"what is stored, and what may be, knows no message",
	},
	{
		"server/topic/internal/schema", []string{"server/topic/internal/storage", "server/topic/refusal", "server/registry",
			"server/store", "server/store/table", "gen/..."},
		"what a payload must be knows the registry, and no topic",
	},
	{
		"server/topic/internal/serving", []string{"server/topic/internal/machine", "server/topic/internal/storage",
			"server/topic/refusal", "server/commitlog", "server/infra/pace", "server/store", "server/store/table",
			"server/infra/wait",
			"gen/..."},
		"open topics know neither callers nor jobs",
	},
	{
		"server/topic/internal/operations", []string{"server/topic/internal/...", "server/topic/refusal",
			"server/commitlog", "server/store", "server/store/table", "server/infra/wait", "gen/..."},
		"jobs and operators know open topics, and no transport",
	},
	{
		"server/topic", []string{"server/topic/...", "server/commitlog", "server/store/lease", "server/registry",
			"server/store",
			"server/store/table", "server/infra/wait", "gen/..."},
		"topics know rows and the log, and no transport",
	},
	{
		"server/commitlog/...", []string{"server/commitlog/...", "server/store", "server/event", "gen/..."},
		"a log knows the engine's contract, and nothing of durable topics or Kafka",
	},
	{
		"server/eventlog", []string{"server/commitlog/...", "server/event", "server/kafka", "server/store",
			"server/store/table"},
		"what a record of the event log is made of knows rows and headers, and not who reads it",
	},
	{
		"server/eventlog/session", []string{"server/eventlog", "server/kafka", "server/infra/wait"},
		"a session knows the log and committed offsets, and neither the store nor what handles records",
	},
	{
		"server/eventlog/upgrade", []string{"server/backend/restore", "server/commitlog/...", "server/event",
			"server/eventlog", "server/kafka", "server/kafka/group", "server/kafka/logdir", "server/kafka/versions",
			"server/search", "server/store", "server/store/table"},
		"the move of an old log knows both logs, and neither engines nor the broker",
	},
	{"server/commitlog/record", nil, "the bytes of records know no log"},
	{"server/kafka/logdir", []string{"server/kafka"}, "the files of an old log are read without knowing what reads them"},
	{
		"server/kafka/logdir/oldbroker", []string{"server/kafka/logdir"},
		"the broker of earlier releases knows its files, and nothing of Parley's rules",
	},
	{"server/kafka/group", nil, "groups know rows as bytes, and neither the store nor the log"},
	{
		"server/move", []string{"server/infra/durable", "server/store", "server/store/table", "server/commitlog"},
		"an export knows rows and records, and no engine",
	},
	{"server/kafka/serve", []string{"server/kafka"}, "requests are answered without knowing listeners, groups or stores"},
	{
		"server/search", []string{"server/kafka", "server/store/table", "gen/..."},
		"what search events are knows topics and rows, and neither stores nor callers",
	},
	{
		"server/search/record", []string{"server/chat/admit", "server/chat/commit", "server/chat/groupcommit",
			"server/event", "server/search", "server/store", "server/store/table", "server/infra/wait"},
		"who records knows no transport and no broker",
	},
	{
		"server/identity/identifier", []string{"server/chat/commit", "server/store", "server/store/table/people",
			"server/infra/wait"},
		"whose an identifier is is known without knowing how it is proven",
	},
	{"server/identity/securitylog", nil, "what is reported of accounts knows none"},
	{
		"server/identity/otp", []string{"server/chat/commit", "server/identity/identifier", "server/identity/securitylog",
			"server/store", "server/store/table/people", "server/infra/wait"},
		"codes know neither users nor sessions",
	},
	{
		"server/identity/ticket", []string{"server/chat/commit", "server/store", "server/store/table/people",
			"server/infra/wait"},
		"a ticket knows neither users nor sessions",
	},
	{
		"server/identity/sender", []string{"server/identity/identifier", "server/identity/otp", "server/infra/egress",
			"server/infra/loopback", "server/infra/wait"},
		"a way to people knows no store",
	},
	{
		"server/identity/session", []string{"server/auth", "server/chat/commit", "server/identity/securitylog",
			"server/store", "server/store/table", "server/store/table/people", "server/infra/wait"},
		"sessions do not know how somebody proved who they are",
	},
	{
		"server/identity/signin", []string{"server/identity/identifier", "server/identity/otp",
			"server/identity/securitylog", "server/identity/session", "server/store", "server/store/table"},
		"what a proof is good for knows no transport",
	},
	{
		"server/internal/authapi", []string{"server/auth", "server/identity/...", "server/infra/rpc",
			"server/internal/api", "gen/..."},
		"an API service knows its use case",
	},
	{
		"workers/searchrelay", []string{"server/event", "server/eventlog", "server/kafka", "server/search",
			"server/store", "server/store/table", "workers/relay"},
		"what records are made of knows no process",
	},
	{
		"server/identity/people", []string{"server/infra/bounded", "server/chat/...", "server/store",
			"server/store/table/...",
			"server/infra/wait"},
		"what people show and allow knows rows and chats, and neither transport nor streams",
	},
	{
		"server/internal/userapi", []string{"server/auth", "server/identity/people", "server/infra/rpc",
			"server/internal/api", "server/internal/streamwriter", "server/store/table/...", "gen/..."},
		"an API service knows its use case",
	},
	{
		"server/client/conformance", []string{"server/client", "server/client/device", "gen/..."},
		"scenarios are what a client is given and wants",
	},
	{
		"server/client/blackbox", []string{"server/auth", "server/client/bearer", "server/infra/wait", "gen/..."},
		"a client is judged by the contracts of the server alone",
	},
	{"server/link/caller", nil, "who calls is said by who puts processes together"},
	{
		"workers/topicproxy", []string{"server/auth", "server/link/caller", "server/topic", "server/topic/refusal",
			"server/infra/wait", "gen/..."},
		"what is passed on to servers knows no server and no store",
	},
	{
		"workers/projection", []string{"server/event", "server/kafka", "server/kafka/lag", "server/kafka/versions",
			"server/infra/pace", "server/store", "server/store/table", "server/infra/wait", "workers/consume"},
		"how a read model is kept knows no read model, and not who asks for it",
	},
	{
		"workers/projection/chatactivity", []string{"server/event", "server/kafka", "server/store", "server/store/table",
			"workers/projection", "gen/..."},
		"a read model knows events and rows",
	},
	{
		"workers/projection/notifications", []string{"server/event", "server/kafka", "server/store", "server/store/table",
			"workers/consume", "workers/deadletter", "workers/deadletter/encoding", "workers/projection"},
		"a read model knows events and rows",
	},
	{"server/infra/egress", []string{"server/infra/loopback"}, "what may be reached knows nothing of what is sent there"},
	{
		"server/topic/internal/push", []string{"server/infra/egress", "server/topic/internal/serving",
			"server/infra/wait", "gen/..."},
		"a webhook is a member of a group: it knows sessions, and neither rows nor rights",
	},
	{"server/store/lease", []string{"server/store", "server/store/table"}, "leases know nothing of what is leased"},
	{
		"workers/eventquery", []string{"server/check/derive", "server/event", "server/store", "server/store/outbox",
			"server/store/table"},
		"reading events knows rows, and neither Kafka nor who asks",
	},
	{"workers/ops/withhold", []string{"server/event", "server/store", "server/store/table/..."},
		"who is shown content is a rule of accounts, whoever asks"},
	{"workers/ops/redact", []string{"gen/..."}, "what is hidden is a rule of messages, whoever shows them"},
	{"workers/ops/pagetoken", nil, "a token knows no list"},
	{
		"server/audit", []string{"server/infra/wait", "server/store", "server/store/table"},
		"records know rows, and not what they are about",
	},
	{
		"server/identity/admin", []string{"server/store", "server/store/table"},
		"what operators do with people knows parts of identity as interfaces, and no transport",
	},
	{
		"workers/ops/adminapi", []string{"server/identity/admin", "server/store", "server/store/table", "server/audit",
			"workers/ops/pagetoken", "gen/..."},
		"an API service knows its use cases",
	},
	{
		"workers/ops/opsctl", []string{"server/auth", "server/client/bearer", "server/client/topic", "server/infra/cmdline",
			"server/infra/config", "server/infra/wait", "server/topic/refusal", "gen/..."},
		"commands know the contracts of the server",
	},
	{
		"workers/ops/parkedkeys", []string{"server/store", "server/store/table", "workers/consume/parked",
			"workers/ops/pagetoken", "gen/..."},
		"parked keys are read here; what releases them are their letters",
	},
	{
		"workers/ops/events", []string{"server/check/derive", "server/store", "server/store/outbox", "workers/eventquery",
			"workers/ops/pagetoken", "workers/ops/redact", "workers/ops/withhold", "gen/..."},
		"the event store is read here, not changed",
	},
	{
		"server/chat/...",
		[]string{"server/chat/...", "server/store", "server/store/table/...", "server/event", "server/infra/wait", "gen/..."},
		"the rules of chats know rows, events and pauses, and nothing else",
	},
}
