package config

import "net/netip"

// Settings are the settings of one program, parsed. The table says what each means.
type Settings struct {
	Listen                   string // of the API, or of the workers' health and metrics
	WebOrigins               []string
	AllowedHosts             []string
	AnyHost                  bool // every name is allowed
	Proxies                  int
	ProxyNetworks            []netip.Prefix // in place of the number of proxies
	MaxConnections           int
	MaxConnectionsPerAddress int
	MaxStreamsPerAddress     int
	MaxStreamsPerUser        int
	MaxRequests              int                        // calls under way; 0 for no bound
	Limits                   string                     // of rates, as package limit reads it
	TLS                      struct{ Cert, Key string } // files of the public listener
	MetricsListen            string
	DemoUsers                bool
	LogFormat                string // text or json
	GCPercent                int    // growth of the heap
	MemoryPercent            int    // share of the memory; 0 for no bound
	Store                    string // embedded or dynamodb
	MaxChatsPerUser          int
	MaxMembersPerGroup       int
	ReadReceipts             bool     // in direct chats
	TopicCreators            []string // users who may make topics
	TopicJobs                string   // schedule of the jobs on topics
	TopicMaxBytes            uint64   // of the messages of a topic; 0 for the default
	TopicPushAllow           []string // hosts and networks that webhooks may lead to, as package egress reads them
	EventLogMegabytes        int      // cap of the embedded event log; 0: by the machine's memory
	SearchTopics             string   // where search events go, as package search reads it
	SearchAttempts           int      // of publishing a search event that is refused
	Issuers                  string   // of tokens, as package issuer reads them
	SignUp                   bool     // people whose identifier no user has become users
	Codes                    struct { // to sign in with
		Way                             string // auto, log, smtp, webhook or none
		SMTPAddress, SMTPFrom, SMTPUser string
		SMTPPassword                    Secret
		SMTPTLS                         string // starttls or implicit
		Webhook                         string // URL
		WebhookSecret                   Secret
	}

	DataDir     string
	AcceptLoss  string
	DiskReserve uint64 // bytes that must be free on the disk for writes; 0 for the default
	// Backups of the data directory: where, every so many hours, and how many stay.
	Backup struct {
		Dir         string
		Hours, Keep int
	}
	KafkaListen string
	// KafkaConnections bounds the connections to that port.
	KafkaConnections int

	Registry struct {
		Listen                  string
		Password, WritePassword Secret
		Cert, Key               string // files
		Register                bool   // missing schemas
	}
	DynamoDB struct{ Prefix, Region, Endpoint string }
	Kafka    struct {
		Brokers       []string
		TLS           bool
		CA, Cert, Key string // files
		SASL, User    string
		Password      Secret
		Principals    string
		Replication   int
	}
	RelaySlots int
	WorkerName string
	TopicSlots int
	Redis      struct {
		URL, CA, Prefix            string
		Password, SentinelPassword Secret
		OnCommandLine              bool // the URL was given by its flag, which others on the machine can see
	}
	KeyFile string
	Links   struct {
		Listen, Address string
		CA, Cert, Key   string // files
	}
	Operators struct {
		Listen, Address string
		Name            string
		Token           Secret
	}

	// Warnings are lines about what works but should be changed.
	Warnings []string
}

// BehindProxy reports whether proxies stand between clients and the server.
func (s Settings) BehindProxy() bool { return s.Proxies > 0 || len(s.ProxyNetworks) > 0 }
