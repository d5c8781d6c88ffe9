package config

import "log/slog"

// Settings are the settings of one program, parsed. The table says what each means.
type Settings struct {
	Listen                   string // of the API, or of the workers' health and metrics
	WebOrigins               []string
	AllowedHosts             []string
	AnyHost                  bool // every name is allowed
	Proxies                  int
	MaxConnections           int
	MaxConnectionsPerAddress int
	MetricsListen            string
	DemoUsers                bool
	LogFormat                string // text or json
	Store                    string // embedded or dynamodb
	MaxChatsPerUser          int

	DataDir     string
	AcceptLoss  string
	KafkaListen string

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

// Secret is a value that shows itself only to those who ask for it.
type Secret string

const hidden = "(hidden)"

// String hides the value from formatting.
func (Secret) String() string { return hidden }

// GoString hides the value from %#v.
func (Secret) GoString() string { return hidden }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText hides the value from JSON and the like.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }
