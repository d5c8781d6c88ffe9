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
	{Name: fileSetting, Flag: "config", Of: serverAndWorkers, Help: "file of settings, lines NAME=value; flags and the environment go before it"},

	{section: "Programs", Name: "PARLEY_LISTEN", Flag: "listen", Of: Server, Default: DefaultListen, parse: address(func(s *Settings) *string { return &s.Listen }), Help: "address of the API, health and metrics of a server; port 0 takes a free one"},
	{Name: "PARLEY_WEB_ORIGINS", Flag: "web-origins", Of: Server, Default: "local", parse: parseWebOrigins, Help: "origins of the web pages that may call the API, such as https://chat.example.com, with commas between them; local stands for those served from this machine, none for no page"},
	{Name: "PARLEY_ALLOWED_HOSTS", Flag: "allowed-hosts", Of: Server, parse: parseAllowedHosts, Help: "names by which the server is called, with commas between them, such as chat.example.com; a server that listens on loopback is called by those of this machine in any case, and refuses others, because web pages can make up names for it; any allows every name, which is the default behind proxies and beyond loopback"},
	{Name: "PARLEY_BEHIND_PROXY", Flag: "behind-proxy", Of: Server, Default: "0", parse: number(0, 8, func(s *Settings) *int { return &s.Proxies }), Help: "number of proxies, with TLS, between clients and the server, each of which adds to X-Forwarded-For; 0: none, and the header means nothing"},
	{Name: "PARLEY_MAX_CONNECTIONS", Flag: "max-connections", Of: Server, Default: "50000", parse: number(16, 1_000_000, func(s *Settings) *int { return &s.MaxConnections }), Help: "connections of clients at once; fewer if the process may not open as many files. Where there is no room, those that have shown no token make some, oldest first, then idle ones"},
	{Name: "PARLEY_MAX_CONNECTIONS_PER_ADDRESS", Flag: "max-connections-per-address", Of: Server, Default: "4000", parse: number(0, 1_000_000, func(s *Settings) *int { return &s.MaxConnectionsPerAddress }), Help: "connections of one client address, behind proxies requests under way; 0: as many as in all. Many users may share an address. This machine's own are not counted"},
	{Name: "PARLEY_METRICS_LISTEN", Flag: "metrics-listen", Of: Server, parse: maybeAddress(func(s *Settings) *string { return &s.MetricsListen }), Help: "address for metrics and health alone; without it metrics are served on loopback with the API, behind proxies to those who come without one, and otherwise not at all"},
	{Name: "PARLEY_DEMO_USERS", Flag: "demo-users", Of: Server, Default: "on", parse: onOff(func(s *Settings) *bool { return &s.DemoUsers }), Help: "on: a server that is everything in one process has users alice and bob, and prints tokens for them that are good for a day; off: neither"},
	{Name: "PARLEY_WORKERS_LISTEN", Flag: "listen", Of: Workers, Default: "127.0.0.1:0", parse: address(func(s *Settings) *string { return &s.Listen }), Help: "address of health and metrics of workers; port 0 takes a free one"},
	{Name: "PARLEY_LOG_FORMAT", Flag: "log-format", Of: serverAndWorkers, Default: "text", parse: oneOf(func(s *Settings) *string { return &s.LogFormat }, "text", "json"), Help: "text or json, on standard error"},
	{Name: "PARLEY_STORE", Flag: "store", Of: serverAndWorkers, Default: "embedded", ofWorkers: "dynamodb", parse: oneOf(func(s *Settings) *string { return &s.Store }, "embedded", "dynamodb"), Help: "embedded: everything in this one process; dynamodb: one of many processes, as workers of their own always are"},
	{Name: "PARLEY_MAX_CHATS_PER_USER", Flag: "max-chats-per-user", Of: Server, Default: "10000", parse: number(1, 1_000_000, func(s *Settings) *int { return &s.MaxChatsPerUser }), Help: "chats that a user can be a member of, those left aside; the same in all servers"},

	{section: "A server that is everything in one process", Name: "PARLEY_DATA_DIR", Flag: "data-dir", Of: Server, Default: DefaultDataDir, parse: notEmpty(func(s *Settings) *string { return &s.DataDir }), Help: "directory of all data"},
	{Name: "PARLEY_ACCEPT_LOSS", Flag: "accept-loss", Of: Server, parse: text(func(s *Settings) *string { return &s.AcceptLoss }), Help: "generation of a store that has lost data: go on with what is left, under a new generation; a server that refuses to start says when, and for which"},
	{Name: "PARLEY_KAFKA_LISTEN", Flag: "kafka-listen", Of: Server, Default: DefaultKafka, parse: address(func(s *Settings) *string { return &s.KafkaListen }), Help: "loopback address of the Kafka port, which wants the password in kafka.properties; if the default is in use, a free one is taken"},

	{section: "Schema registry", Name: "PARLEY_REGISTRY_LISTEN", Flag: "registry-listen", Of: serverAndWorkers, Default: DefaultRegistry, parse: address(func(s *Settings) *string { return &s.Registry.Listen }), Help: "address of the schema registry, in an embedded server on loopback, where a free port is taken if the default is in use; of workers beyond loopback only with a password"},
	{Name: "PARLEY_REGISTRY_PASSWORD", Of: Workers, Secret: true, parse: secret(func(s *Settings) *Secret { return &s.Registry.Password }), Help: "what the registry's readers must know"},
	{Name: "PARLEY_REGISTRY_WRITE_PASSWORD", Of: Workers, Secret: true, parse: secret(func(s *Settings) *Secret { return &s.Registry.WritePassword }), Help: "what those must know who register and delete schemas there, and may read as well; without it nobody changes anything"},
	{Name: "PARLEY_REGISTRY_CERT", Flag: "registry-cert", Of: Workers, parse: text(func(s *Settings) *string { return &s.Registry.Cert }), Help: "file with the registry's certificate, for HTTPS"},
	{Name: "PARLEY_REGISTRY_KEY", Flag: "registry-key", Of: Workers, parse: text(func(s *Settings) *string { return &s.Registry.Key }), Help: "file with its key"},
	{Name: "PARLEY_REGISTER_SCHEMAS", Flag: "register-schemas", Of: Workers, Default: "off", parse: onOff(func(s *Settings) *bool { return &s.Registry.Register }), Help: "off: jobs start only if the schemas of their events are registered, which workers schemas register sees to; on: they register what is missing themselves"},

	{section: "DynamoDB", Name: "PARLEY_DYNAMODB_PREFIX", Flag: "dynamodb-prefix", Of: serverAndWorkers, Default: "parley_", parse: text(func(s *Settings) *string { return &s.DynamoDB.Prefix }), Help: "prefix of the names of DynamoDB's tables"},
	{Name: "PARLEY_DYNAMODB_REGION", Flag: "dynamodb-region", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.DynamoDB.Region }), Help: "region of DynamoDB; without it AWS's own settings say, which also hold the credentials"},
	{Name: "PARLEY_DYNAMODB_ENDPOINT", Flag: "dynamodb-endpoint", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.DynamoDB.Endpoint }), Help: "URL of DynamoDB instead of the region's; http:// is DynamoDB Local"},

	{section: "Kafka", Name: "PARLEY_KAFKA_BROKERS", Flag: "kafka-brokers", Of: serverAndWorkers, parse: list(func(s *Settings) *[]string { return &s.Kafka.Brokers }), Help: "brokers of Kafka, host:port with commas between them; servers need none"},
	{Name: "PARLEY_KAFKA_TLS", Flag: "kafka-tls", Of: serverAndWorkers, Default: "off", parse: onOff(func(s *Settings) *bool { return &s.Kafka.TLS }), Help: "on or off"},
	{Name: "PARLEY_KAFKA_CA", Flag: "kafka-ca", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Kafka.CA }), Help: "file with the certificates to trust instead of the system's"},
	{Name: "PARLEY_KAFKA_CERT", Flag: "kafka-cert", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Kafka.Cert }), Help: "file with this process's certificate, where Kafka asks for one"},
	{Name: "PARLEY_KAFKA_KEY", Flag: "kafka-key", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Kafka.Key }), Help: "file with its key"},
	{Name: "PARLEY_KAFKA_SASL", Flag: "kafka-sasl", Of: serverAndWorkers, parse: oneOf(func(s *Settings) *string { return &s.Kafka.SASL }, "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), Help: "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with the password in PARLEY_KAFKA_PASSWORD"},
	{Name: "PARLEY_KAFKA_USER", Flag: "kafka-user", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Kafka.User }), Help: "user at Kafka"},
	{Name: "PARLEY_KAFKA_PASSWORD", Of: serverAndWorkers, Secret: true, parse: secret(func(s *Settings) *Secret { return &s.Kafka.Password }), Help: "password of that user"},
	{Name: "PARLEY_KAFKA_PRINCIPALS", Flag: "kafka-principals", Of: Workers, parse: text(func(s *Settings) *string { return &s.Kafka.Principals }), Help: "who has which role in Kafka's ACLs, ROLE=PRINCIPAL with semicolons between them; without it relay=User:parley-relay;fanout=User:parley-fanout;ops=User:parley-ops;operator=User:parley-operator"},
	{Name: "PARLEY_REPLICATION", Flag: "replication", Of: Workers, Default: "3", parse: number(1, 32767, func(s *Settings) *int { return &s.Kafka.Replication }), Help: "replicas of each partition that topics are made with and checked for"},
	{Name: "PARLEY_RELAY_SLOTS", Flag: "relay-slots", Of: Workers, Default: "8", parse: number(1, 64, func(s *Settings) *int { return &s.RelaySlots }), Help: "parts in which relays share the work; the same in all processes"},

	{section: "Redis", Name: "PARLEY_REDIS", Flag: "redis", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Redis.URL }), Help: "redis://[user@]host:port[,host:port], or rediss:// for TLS, with the password in PARLEY_REDIS_PASSWORD; several hosts or ?cluster=true are a cluster, ?master=NAME[&sentinel_user=USER] asks sentinels"},
	{Name: "PARLEY_REDIS_CA", Flag: "redis-ca", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Redis.CA }), Help: "file with the certificates to trust instead of the system's"},
	{Name: "PARLEY_REDIS_PREFIX", Flag: "redis-prefix", Of: serverAndWorkers, Default: "parley:", parse: notEmpty(func(s *Settings) *string { return &s.Redis.Prefix }), Help: "prefix of all keys and channels; the same in all processes"},
	{Name: "PARLEY_REDIS_PASSWORD", Of: serverAndWorkers, Secret: true, parse: secret(func(s *Settings) *Secret { return &s.Redis.Password }), Help: "password of Redis's user"},
	{Name: "PARLEY_REDIS_SENTINEL_PASSWORD", Of: serverAndWorkers, Secret: true, parse: secret(func(s *Settings) *Secret { return &s.Redis.SentinelPassword }), Help: "password of the sentinels' user, where they have one"},

	{section: "Links between processes", Name: "PARLEY_KEY_FILE", Flag: "key-file", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.KeyFile }), Help: "PEM file of the Ed25519 key that all processes share; an embedded server makes its own, auth.key in the data directory"},
	{Name: "PARLEY_LINK_LISTEN", Flag: "link-listen", Of: Server, Default: DefaultLink, parse: address(func(s *Settings) *string { return &s.Links.Listen }), Help: "address for links from other processes, never for clients"},
	{Name: "PARLEY_LINK_ADDRESS", Flag: "link-address", Of: Server, parse: maybeAddress(func(s *Settings) *string { return &s.Links.Address }), Help: "host:port where other processes find link-listen, of each server another; without it link-listen"},
	{Name: "PARLEY_LINK_CA", Flag: "link-ca", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Links.CA }), Help: "file with the authority of all processes' certificates, for links with TLS"},
	{Name: "PARLEY_LINK_CERT", Flag: "link-cert", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Links.Cert }), Help: "file with this process's certificate"},
	{Name: "PARLEY_LINK_KEY", Flag: "link-key", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Links.Key }), Help: "file with its key"},

	{section: "Operators", Name: "PARLEY_OPS_LISTEN", Flag: "ops-listen", Of: serverAndWorkers, Default: DefaultOps, parse: address(func(s *Settings) *string { return &s.Operators.Listen }), Help: "address where operators are served, by an embedded server or workers with the job ops: on loopback, where a free port is taken if the default is in use, or with the certificates of links, which both sides then show"},
	{Name: "PARLEY_OPS_ADDRESS", Flag: "ops-address", Of: serverAndWorkers, Default: DefaultOps, parse: address(func(s *Settings) *string { return &s.Operators.Address }), Help: "where the commands of operators find them"},
	{Name: "PARLEY_OPERATOR", Flag: "operator", Of: serverAndWorkers, parse: text(func(s *Settings) *string { return &s.Operators.Name }), Help: "name of the operator for the audit, without a token; default: the system's name of the user"},
	{Name: "PARLEY_OPS_TOKEN", Of: serverAndWorkers, Secret: true, parse: secret(func(s *Settings) *Secret { return &s.Operators.Token }), Help: "operator's token; without it commands make one with the key that all processes share"},
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

func find(name string) (Setting, bool) {
	i := slices.IndexFunc(table, func(s Setting) bool { return s.Name == name })
	if i < 0 {
		return Setting{}, false
	}
	return table[i], true
}
