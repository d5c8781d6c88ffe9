package config

import "slices"

// Defaults that other packages use.
const (
	DefaultListen   = "127.0.0.1:8080"
	DefaultDataDir  = ".parley"
	DefaultKafka    = "127.0.0.1:9092"
	DefaultRegistry = "127.0.0.1:8081"
	DefaultLink     = "127.0.0.1:8091"
	DefaultOps      = "127.0.0.1:8082"
)

// fileSetting is the one setting that cannot stand in the file.
const fileSetting = "PARLEY_CONFIG"

const serverAndWorkers = Server | Workers

// table declares all settings: flags, variables, help, the documented file and tests
// come from it.
var table = []Setting{
	{Name: fileSetting, Flag: "config", Of: serverAndWorkers,
		Help: "file of settings, lines NAME=value; flags and the environment go before it"},

	{section: "Programs", Name: "PARLEY_LISTEN", Flag: "listen", Of: Server, Default: DefaultListen,
		parse: address(func(s *Settings) *string { return &s.Listen }),
		Help:  "address of the API, health and metrics of a server; port 0 takes a free one"},
	{Name: "PARLEY_WEB_ORIGINS", Flag: "web-origins", Of: Server, Default: "local", parse: parseWebOrigins,
		Help: "origins of the web pages that may call the API, such as https://chat.example.com, with commas between them; local stands for those served from this machine, none for no page"},
	{Name: "PARLEY_ALLOWED_HOSTS", Flag: "allowed-hosts", Of: Server, parse: parseAllowedHosts,
		Help: "names by which the server is called, with commas between them, such as chat.example.com; a server that listens on loopback is called by those of this machine in any case, and refuses others, because web pages can make up names for it; any allows every name, which is the default behind proxies and beyond loopback"},
	{Name: "PARLEY_BEHIND_PROXY", Flag: "behind-proxy", Of: Server, Default: "0",
		parse: parseProxies,
		Help:  "number of proxies, with TLS, between clients and the server, each of which adds to X-Forwarded-For, or their networks, such as 10.0.0.0/8,192.0.2.7, with commas between them: then the client is whoever the last of these proxies was called by, and the header of others means nothing; 0: none, and the header means nothing"},
	{Name: "PARLEY_TLS_CERT", Flag: "tls-cert", Of: Server,
		parse: text(func(s *Settings) *string { return &s.TLS.Cert }),
		Help:  "file with the certificate of the API's listener and those that have signed it, for TLS 1.2 and later; it is read again when it changes"},
	{Name: "PARLEY_TLS_KEY", Flag: "tls-key", Of: Server,
		parse: text(func(s *Settings) *string { return &s.TLS.Key }), Help: "file with its key"},
	{Name: "PARLEY_MAX_CONNECTIONS", Flag: "max-connections", Of: Server, Default: "50000",
		parse: number(16, 1_000_000, func(s *Settings) *int { return &s.MaxConnections }),
		Help:  "connections of clients at once; fewer if the process may not open as many files. Where there is no room, those that have shown no token make some, oldest first, then idle ones"},
	{Name: "PARLEY_MAX_CONNECTIONS_PER_ADDRESS", Flag: "max-connections-per-address", Of: Server, Default: "4000",
		parse: number(0, 1_000_000, func(s *Settings) *int { return &s.MaxConnectionsPerAddress }),
		Help:  "connections of one client address, behind proxies requests under way; 0: as many as in all. Many users may share an address. This machine's own are not counted"},
	{Name: "PARLEY_MAX_STREAMS_PER_ADDRESS", Flag: "max-streams-per-address", Of: Server, Default: "1000",
		parse: number(0, 1_000_000, func(s *Settings) *int { return &s.MaxStreamsPerAddress }),
		Help:  "streams of events of one client address, for IPv6 of one /64, in a process; 0: unbounded. Many users may share an address. This machine's own are not counted"},
	{Name: "PARLEY_MAX_STREAMS_PER_USER", Flag: "max-streams-per-user", Of: Server, Default: "5",
		parse: number(1, 1_000, func(s *Settings) *int { return &s.MaxStreamsPerUser }),
		Help:  "streams of events of one user in a process; the newest ends the oldest"},
	{Name: "PARLEY_MAX_REQUESTS", Flag: "max-requests", Of: Server, Default: "4096",
		parse: number(0, 1_000_000, func(s *Settings) *int { return &s.MaxRequests }),
		Help:  "calls under way at once; while many take longer than a second, fewer are let in and the others are asked to retry. 0: unbounded"},
	{Name: "PARLEY_LIMITS", Flag: "limits", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Limits }),
		Help:  "how often users, sessions and addresses may do what, in place of the declared rates: parts with commas between them, NAME=COUNT/PERIOD:BURST with the period s, m, h or d, such as send=2/s:120, NAME=off, or PERCENT%, which scales all rules without a part of their own; off: no limits of rates, for load tests; without a value a server that is everything in one process and listens on loopback without a proxy has none, and all others have the declared ones. Workers that serve operators show them"},
	{Name: "PARLEY_METRICS_LISTEN", Flag: "metrics-listen", Of: Server,
		parse: maybeAddress(func(s *Settings) *string { return &s.MetricsListen }),
		Help:  "address for metrics and health alone; without it, metrics are served with the API by a server that is everything in one process and listens on loopback without a proxy, and not at all elsewhere"},
	{Name: "PARLEY_DEMO_USERS", Flag: "demo-users", Of: Server, Default: "on",
		parse: onOff(func(s *Settings) *bool { return &s.DemoUsers }),
		Help:  "on: a server that is everything in one process and listens on loopback without a proxy has users alice and bob, and prints tokens for them that are valid for a day; off: neither. Other servers never have them"},
	{Name: "PARLEY_WORKERS_LISTEN", Flag: "listen", Of: Workers, Default: "127.0.0.1:0",
		parse: address(func(s *Settings) *string { return &s.Listen }),
		Help:  "address of health and metrics of workers; port 0 takes a free one"},
	{Name: "PARLEY_LOG_FORMAT", Flag: "log-format", Of: serverAndWorkers, Default: "text",
		parse: oneOf(func(s *Settings) *string { return &s.LogFormat }, "text", "json"),
		Help:  "text or json, on standard error"},
	{Name: "PARLEY_GC_PERCENT", Flag: "gc-percent", Of: serverAndWorkers, Default: "400",
		parse: number(10, 10_000, func(s *Settings) *int { return &s.GCPercent }),
		Help:  "how much the heap may grow, in percent of what is in use, before garbage is collected: more takes memory and saves CPU. GOGC goes before it"},
	{Name: "PARLEY_MEMORY_PERCENT", Flag: "memory-percent", Of: serverAndWorkers, Default: "60",
		parse: number(0, 95, func(s *Settings) *int { return &s.MemoryPercent }),
		Help:  "part of the memory of the machine, or of its container, beyond which garbage is collected earlier, whatever gc-percent says; 0: no such bound. GOMEMLIMIT goes before it"},
	{Name: "PARLEY_STORE", Flag: "store", Of: serverAndWorkers, Default: "embedded", ofWorkers: "dynamodb",
		parse: oneOf(func(s *Settings) *string { return &s.Store }, "embedded", "dynamodb"),
		Help:  "embedded: everything in this one process; dynamodb: one of many processes, as workers of their own always are"},
	{Name: "PARLEY_MAX_CHATS_PER_USER", Flag: "max-chats-per-user", Of: Server, Default: "10000",
		parse: number(1, 1_000_000, func(s *Settings) *int { return &s.MaxChatsPerUser }),
		Help:  "chats that a user can be a member of, those left aside; the same in all servers"},
	{Name: "PARLEY_MAX_MEMBERS_PER_GROUP", Flag: "max-members-per-group", Of: Server, Default: "100",
		parse: number(3, 1000, func(s *Settings) *int { return &s.MaxMembersPerGroup }),
		Help:  "members of a group, its owner included; groups that have more keep them; the same in all servers"},
	{Name: "PARLEY_READ_RECEIPTS", Flag: "read-receipts", Of: Server, Default: "on",
		parse: onOff(func(s *Settings) *bool { return &s.ReadReceipts }),
		Help:  "on: the two of a direct chat are shown how far the other has read, unless one blocks the other; off: nobody is; the same in all servers"},
	{Name: "PARLEY_TOPIC_CREATORS", Flag: "topic-creators", Of: Server,
		parse: list(func(s *Settings) *[]string { return &s.TopicCreators }),
		Help:  "users who may make topics, with commas between them; without it only operators may"},
	{Name: "PARLEY_TOPIC_JOBS", Flag: "topic-jobs", Of: Server, Default: "standard",
		parse: oneOf(func(s *Settings) *string { return &s.TopicJobs }, "standard", "auto", "low", "high", "critical",
			"incremental"),
		Help: "how often messages of topics that nobody needs are removed: standard, every 5 min; auto, by the rate of publishes; low, 15 min; high, 1 min; critical, 5 min; incremental, 10 s; low to critical also say how long ended subscriptions are kept: 30, 7, 90 days"},
	{Name: "PARLEY_EVENT_LOG_MEGABYTES", Flag: "event-log-megabytes", Of: Server, Default: "0",
		parse: number(0, 65536, func(s *Settings) *int { return &s.EventLogMegabytes }),
		Help:  "size of the event log of a server that is everything in one process, in units of 1,048,576 bytes; the server removes the oldest records beyond it. A start reads the log into memory, which takes up to four times its size. 0: 512, or a sixteenth of the memory if that is less"},
	{Name: "PARLEY_SEARCH_TOPICS", Flag: "search-topics", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.SearchTopics }),
		Help:  "Kafka topics of search events in place of the declared ones, TYPE=TOPIC with commas between them; behind a topic :aggregate makes the search the key of its records, in place of the event; each topic has one of dead letters, TOPIC.dlq"},
	{Name: "PARLEY_SEARCH_ATTEMPTS", Flag: "search-attempts", Of: serverAndWorkers, Default: "5",
		parse: number(1, 100, func(s *Settings) *int { return &s.SearchAttempts }),
		Help:  "attempts to publish a search event that its topic refuses for good, before it goes to the topic's dead letters; what only cannot be reached is tried for ever"},

	{section: "Signing in", Name: "PARLEY_CODES", Flag: "codes", Of: Server, Default: "auto",
		parse: oneOf(func(s *Settings) *string { return &s.Codes.Way }, "auto", "log", "smtp", "webhook", "none"),
		Help:  "how codes to sign in with get to people: log, a line of the server's log; smtp, mail; webhook, a program of yours; none; auto is log for a server that is everything in one process and listens on loopback without a proxy, and none elsewhere"},
	{Name: "PARLEY_SIGN_UP", Flag: "sign-up", Of: Server, Default: "on",
		parse: onOff(func(s *Settings) *bool { return &s.SignUp }),
		Help:  "on: who signs in with a code to an identifier that nobody has becomes a new user; off: no code is sent there, which nobody can tell from the answer"},
	{Name: "PARLEY_ISSUERS", Flag: "issuers", Of: Server,
		parse: text(func(s *Settings) *string { return &s.Issuers }),
		Help:  "OpenID Connect issuers whose tokens sign people in, with semicolons between them, each URL,aud=AUDIENCE,users=BEGINNING[,alg=RS256]: the URL exactly as their tokens have it, for whom the tokens are, how the ids of their users begin (or * for as the subjects are, of one issuer alone)"},
	{Name: "PARLEY_SMTP_ADDRESS", Flag: "smtp-address", Of: Server,
		parse: maybeAddress(func(s *Settings) *string { return &s.Codes.SMTPAddress }),
		Help:  "host:port of the mail server that takes codes"},
	{Name: "PARLEY_SMTP_FROM", Flag: "smtp-from", Of: Server,
		parse: text(func(s *Settings) *string { return &s.Codes.SMTPFrom }),
		Help:  "sender of the mail, user@domain or Name <user@domain>"},
	{Name: "PARLEY_SMTP_TLS", Flag: "smtp-tls", Of: Server, Default: "starttls",
		parse: oneOf(func(s *Settings) *string { return &s.Codes.SMTPTLS }, "starttls", "implicit"),
		Help:  "starttls: the connection is upgraded, and none is used that cannot be, but to this machine; implicit: TLS from the first byte, as on port 465"},
	{Name: "PARLEY_SMTP_USER", Flag: "smtp-user", Of: Server,
		parse: text(func(s *Settings) *string { return &s.Codes.SMTPUser }), Help: "user at the mail server"},
	{Name: "PARLEY_SMTP_PASSWORD", Of: Server, Secret: true,
		parse: secret(func(s *Settings) *Secret { return &s.Codes.SMTPPassword }), Help: "password of that user"},
	{Name: "PARLEY_CODES_WEBHOOK", Flag: "codes-webhook", Of: Server,
		parse: text(func(s *Settings) *string { return &s.Codes.Webhook }),
		Help:  "https:// address of the program that takes codes, each as a POST that is signed with PARLEY_CODES_WEBHOOK_SECRET"},
	{Name: "PARLEY_CODES_WEBHOOK_SECRET", Of: Server, Secret: true,
		parse: secret(func(s *Settings) *Secret { return &s.Codes.WebhookSecret }),
		Help:  "secret of those signatures, at least 16 bytes"},

	{section: "A server that is everything in one process", Name: "PARLEY_DATA_DIR", Flag: "data-dir", Of: Server,
		Default: DefaultDataDir, parse: notEmpty(func(s *Settings) *string { return &s.DataDir }),
		Help: "directory of all data"},
	{Name: "PARLEY_DISK_RESERVE", Flag: "disk-reserve", Of: Server, Default: "auto",
		parse: parseDiskReserve,
		Help:  "space that must be free on the disk of the data directory: while less is free, the server refuses writes and serves reads; a number with MB or GB, such as 500MB; auto is 5 % of the disk, at most 4GB. The server never takes less than the store needs, about 256MB"},
	{Name: "PARLEY_ACCEPT_LOSS", Flag: "accept-loss", Of: Server,
		parse: text(func(s *Settings) *string { return &s.AcceptLoss }),
		Help:  "generation of a store that has lost data: continue with what is left, under a new generation; a server that refuses to start says when, and for which"},
	{Name: "PARLEY_KAFKA_LISTEN", Flag: "kafka-listen", Of: Server, Default: DefaultKafka,
		parse: address(func(s *Settings) *string { return &s.KafkaListen }),
		Help:  "loopback address of the Kafka port, which wants the password in kafka.properties; if the default is in use, a free one is taken"},
	{Name: "PARLEY_KAFKA_CONNECTIONS", Flag: "kafka-connections", Of: Server, Default: "64",
		parse: number(4, 4096, func(s *Settings) *int { return &s.KafkaConnections }),
		Help:  "connections to the Kafka port at once; a consumer needs two or three, and each may take 10 MB of memory while it reads. When the limit is reached, the server closes the oldest connection that has not shown the password; if there is none, it refuses the new one"},

	{section: "Schema registry", Name: "PARLEY_REGISTRY_LISTEN", Flag: "registry-listen", Of: serverAndWorkers,
		Default: DefaultRegistry, parse: address(func(s *Settings) *string { return &s.Registry.Listen }),
		Help: "address of the schema registry, in an embedded server on loopback, where a free port is taken if the default is in use; of workers beyond loopback only with a password"},
	{Name: "PARLEY_REGISTRY_PASSWORD", Of: Workers, Secret: true,
		parse: secret(func(s *Settings) *Secret { return &s.Registry.Password }),
		Help:  "what the registry's readers must know"},
	{Name: "PARLEY_REGISTRY_WRITE_PASSWORD", Of: Workers, Secret: true,
		parse: secret(func(s *Settings) *Secret { return &s.Registry.WritePassword }),
		Help:  "what those must know who register and delete schemas there, and may read as well; without it nobody changes anything"},
	{Name: "PARLEY_REGISTRY_CERT", Flag: "registry-cert", Of: Workers,
		parse: text(func(s *Settings) *string { return &s.Registry.Cert }),
		Help:  "file with the registry's certificate, for HTTPS"},
	{Name: "PARLEY_REGISTRY_KEY", Flag: "registry-key", Of: Workers,
		parse: text(func(s *Settings) *string { return &s.Registry.Key }), Help: "file with its key"},
	{Name: "PARLEY_REGISTER_SCHEMAS", Flag: "register-schemas", Of: Workers, Default: "off",
		parse: onOff(func(s *Settings) *bool { return &s.Registry.Register }),
		Help:  "off: jobs start only if the schemas of their events are registered, which workers schemas register sees to; on: they register what is missing themselves"},

	{section: "DynamoDB", Name: "PARLEY_DYNAMODB_PREFIX", Flag: "dynamodb-prefix", Of: serverAndWorkers,
		Default: "parley_", parse: text(func(s *Settings) *string { return &s.DynamoDB.Prefix }),
		Help: "prefix of the names of DynamoDB's tables"},
	{Name: "PARLEY_DYNAMODB_REGION", Flag: "dynamodb-region", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.DynamoDB.Region }),
		Help:  "region of DynamoDB; without it AWS's own settings say, which also hold the credentials"},
	{Name: "PARLEY_DYNAMODB_ENDPOINT", Flag: "dynamodb-endpoint", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.DynamoDB.Endpoint }),
		Help:  "URL of DynamoDB instead of the region's; http:// is DynamoDB Local"},

	{section: "Kafka", Name: "PARLEY_KAFKA_BROKERS", Flag: "kafka-brokers", Of: serverAndWorkers,
		parse: list(func(s *Settings) *[]string { return &s.Kafka.Brokers }),
		Help:  "brokers of Kafka, host:port with commas between them; servers need them for durable topics, and for nothing else"},
	{Name: "PARLEY_KAFKA_TLS", Flag: "kafka-tls", Of: serverAndWorkers, Default: "off",
		parse: onOff(func(s *Settings) *bool { return &s.Kafka.TLS }), Help: "on or off"},
	{Name: "PARLEY_KAFKA_CA", Flag: "kafka-ca", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Kafka.CA }),
		Help:  "file with the certificates to trust instead of the system's"},
	{Name: "PARLEY_KAFKA_CERT", Flag: "kafka-cert", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Kafka.Cert }),
		Help:  "file with this process's certificate, where Kafka asks for one"},
	{Name: "PARLEY_KAFKA_KEY", Flag: "kafka-key", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Kafka.Key }), Help: "file with its key"},
	{Name: "PARLEY_KAFKA_SASL", Flag: "kafka-sasl", Of: serverAndWorkers,
		parse: oneOf(func(s *Settings) *string { return &s.Kafka.SASL }, "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
		Help:  "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with the password in PARLEY_KAFKA_PASSWORD"},
	{Name: "PARLEY_KAFKA_USER", Flag: "kafka-user", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Kafka.User }), Help: "user at Kafka"},
	{Name: "PARLEY_KAFKA_PASSWORD", Of: serverAndWorkers, Secret: true,
		parse: secret(func(s *Settings) *Secret { return &s.Kafka.Password }), Help: "password of that user"},
	{Name: "PARLEY_KAFKA_PRINCIPALS", Flag: "kafka-principals", Of: Workers,
		parse: text(func(s *Settings) *string { return &s.Kafka.Principals }),
		Help:  "who has which role in Kafka's ACLs, ROLE=PRINCIPAL with semicolons between them; without it relay=User:parley-relay;fanout=User:parley-fanout;ops=User:parley-ops;operator=User:parley-operator;topics=User:parley-topics"},
	{Name: "PARLEY_REPLICATION", Flag: "replication", Of: serverAndWorkers, Default: "3",
		parse: number(1, 32767, func(s *Settings) *int { return &s.Kafka.Replication }),
		Help:  "replicas of each partition that topics are made with and checked for"},
	{Name: "PARLEY_TOPIC_SLOTS", Flag: "topic-slots", Of: Server, Default: "16",
		parse: number(1, 64, func(s *Settings) *int { return &s.TopicSlots }),
		Help:  "parts in which servers share durable topics; the same in all servers, and as it was at the first start"},
	{Name: "PARLEY_RELAY_SLOTS", Flag: "relay-slots", Of: Workers, Default: "8",
		parse: number(1, 64, func(s *Settings) *int { return &s.RelaySlots }),
		Help:  "parts in which relays share the work; the same in all processes"},

	{section: "Redis", Name: "PARLEY_REDIS", Flag: "redis", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Redis.URL }),
		Help:  "redis://[user@]host:port[,host:port], or rediss:// for TLS, with the password in PARLEY_REDIS_PASSWORD; several hosts or ?cluster=true are a cluster, ?master=NAME[&sentinel_user=USER] asks sentinels"},
	{Name: "PARLEY_REDIS_CA", Flag: "redis-ca", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Redis.CA }),
		Help:  "file with the certificates to trust instead of the system's"},
	{Name: "PARLEY_REDIS_PREFIX", Flag: "redis-prefix", Of: serverAndWorkers, Default: "parley:",
		parse: notEmpty(func(s *Settings) *string { return &s.Redis.Prefix }),
		Help:  "prefix of all keys and channels; the same in all processes"},
	{Name: "PARLEY_REDIS_PASSWORD", Of: serverAndWorkers, Secret: true,
		parse: secret(func(s *Settings) *Secret { return &s.Redis.Password }), Help: "password of Redis's user"},
	{Name: "PARLEY_REDIS_SENTINEL_PASSWORD", Of: serverAndWorkers, Secret: true,
		parse: secret(func(s *Settings) *Secret { return &s.Redis.SentinelPassword }),
		Help:  "password of the sentinels' user, where they have one"},

	{section: "Links between processes", Name: "PARLEY_KEY_FILE", Flag: "key-file", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.KeyFile }),
		Help:  "PEM file of the Ed25519 key that all processes share; an embedded server makes its own, auth.key in the data directory"},
	{Name: "PARLEY_LINK_LISTEN", Flag: "link-listen", Of: Server, Default: DefaultLink,
		parse: address(func(s *Settings) *string { return &s.Links.Listen }),
		Help:  "address for links from other processes, never for clients"},
	{Name: "PARLEY_LINK_ADDRESS", Flag: "link-address", Of: Server,
		parse: maybeAddress(func(s *Settings) *string { return &s.Links.Address }),
		Help:  "host:port where other processes find link-listen, of each server another; without it link-listen"},
	{Name: "PARLEY_LINK_CA", Flag: "link-ca", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Links.CA }),
		Help:  "file with the authority of all processes' certificates, for links with TLS"},
	{Name: "PARLEY_LINK_CERT", Flag: "link-cert", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Links.Cert }), Help: "file with this process's certificate"},
	{Name: "PARLEY_LINK_KEY", Flag: "link-key", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Links.Key }), Help: "file with its key"},

	{section: "Operators", Name: "PARLEY_OPS_LISTEN", Flag: "ops-listen", Of: serverAndWorkers, Default: DefaultOps,
		parse: address(func(s *Settings) *string { return &s.Operators.Listen }),
		Help:  "address where operators are served, by an embedded server or workers with the job ops: on loopback, where a free port is taken if the default is in use, or with the certificates of links, which both sides then show"},
	{Name: "PARLEY_OPS_ADDRESS", Flag: "ops-address", Of: serverAndWorkers, Default: DefaultOps,
		parse: address(func(s *Settings) *string { return &s.Operators.Address }),
		Help:  "where the commands of operators find them"},
	{Name: "PARLEY_OPERATOR", Flag: "operator", Of: serverAndWorkers,
		parse: text(func(s *Settings) *string { return &s.Operators.Name }),
		Help:  "name of the operator for the audit, without a token; default: the system's name of the user"},
	{Name: "PARLEY_OPS_TOKEN", Of: serverAndWorkers, Secret: true,
		parse: secret(func(s *Settings) *Secret { return &s.Operators.Token }),
		Help:  "operator's token; without it commands make one with the key that all processes share"},
}

// Table returns the settings of a program, or of several.
func Table(p Program) []Setting {
	var list []Setting
	section := ""
	for _, s := range table {
		if s.section != "" {
			section = s.section
		}
		s.section = section
		if p == Workers && s.ofWorkers != "" {
			s.Default = s.ofWorkers
		}
		if s.Of&p != 0 {
			list = append(list, s)
		}
	}
	return list
}

func isSetting(name string) bool {
	return slices.ContainsFunc(table, func(s Setting) bool {
		return s.Name == name || s.Secret && s.Name+fileSuffix == name
	})
}
