package app

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/config"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

// Defaults of the configuration.
const (
	DefaultListen  = config.DefaultListen
	DefaultDataDir = config.DefaultDataDir
	DefaultKafka   = config.DefaultKafka
	DefaultLink    = config.DefaultLink

	tokenTTL = 24 * time.Hour
)

// Config is what an operator can set; package config says how.
type Config struct {
	Listen   string // host:port; port 0 takes a free one
	DataDir  string
	Kafka    string // host:port on loopback where the event log speaks Kafka; port 0 takes a free one
	Registry string // host:port on loopback of the schema registry; port 0 takes a free one
	LogJSON  bool

	// Engine holds what server and workers have in common; DataDir and Kafka go there, too.
	Engine engine.Config
	// KeyFile is the key that all processes share; "": one in the data directory.
	KeyFile     string
	LinkListen  string // host:port for other processes
	LinkAddress string // host:port where others find LinkListen; "": as it is
	// LinkCA, LinkCert and LinkKey are files; "" for links without TLS.
	LinkCA, LinkCert, LinkKey string

	warnings []string // of the settings

	// OpsListen is host:port where operators are served; port 0 takes a free one.
	OpsListen string
	ops       opsClient

	command string // "" serves, "token" prints a token, "ops" is an operator's
	user    string
	args    []string // of an operator's command
}

// errUsage is an error of the command line.
type errUsage struct{ error }

// errHelp says that help was asked for and given.
var errHelp = errors.New("help")

var usage = `Parley: a chat server.

usage:
  server [flags]              run the server
  server [flags] token USER   print an access token for a user, for development

commands for operators, while the server runs:
` + opsUsage + `
flags:
`

// parse reads the settings and the command.
func parse(args []string, getenv func(string) string, out io.Writer) (Config, error) {
	v, rest, err := config.Read(config.Server, args, getenv)
	switch {
	case errors.Is(err, config.ErrHelp):
		fmt.Fprint(out, usage)
		config.PrintFlags(out, config.Server)
		return Config{}, errHelp
	case err != nil:
		return Config{}, errUsage{err}
	}
	c := Config{
		Listen: v.Get("PARLEY_LISTEN"), DataDir: v.Get("PARLEY_DATA_DIR"), Kafka: v.Get("PARLEY_KAFKA_LISTEN"), Registry: v.Get("PARLEY_REGISTRY_LISTEN"),
		LogJSON: v.Get("PARLEY_LOG_FORMAT") == "json", KeyFile: v.Get("PARLEY_KEY_FILE"),
		LinkListen: v.Get("PARLEY_LINK_LISTEN"), LinkAddress: v.Get("PARLEY_LINK_ADDRESS"),
		LinkCA: v.Get("PARLEY_LINK_CA"), LinkCert: v.Get("PARLEY_LINK_CERT"), LinkKey: v.Get("PARLEY_LINK_KEY"),
		OpsListen: v.Get("PARLEY_OPS_LISTEN"), ops: opsClient{v.Get("PARLEY_OPS_ADDRESS"), v.Get("PARLEY_OPERATOR"), v.Secret("PARLEY_OPS_TOKEN")},
		warnings: v.Warnings,
	}
	if c.Engine, err = engine.Configure(v); err != nil {
		return c, errUsage{err}
	}
	c.Engine.Mode = v.Get("PARLEY_STORE")
	if err := c.distributed(); err != nil {
		return c, errUsage{err}
	}
	switch {
	case len(rest) == 0:
	case rest[0] == "token" && len(rest) == 2:
		c.command, c.user = "token", rest[1]
		if !auth.UserID.MatchString(c.user) {
			return c, errUsage{fmt.Errorf("user id %.80q must be 1 to 64 letters, digits or underscores", c.user)}
		}
	case opsctl.Is(rest):
		c.command, c.args = "ops", rest
	case rest[0] == "token":
		return c, errUsage{errors.New("token needs one user id")}
	default:
		return c, errUsage{fmt.Errorf("unknown command %q", rest[0])}
	}
	return c, nil
}

// distributed checks what belongs to one mode and not to the other, and completes the
// engine's part.
func (c *Config) distributed() error {
	c.Engine.DataDir, c.Engine.Kafka, c.Engine.KafkaFallback = c.DataDir, c.Kafka, c.Kafka == DefaultKafka
	if err := c.Engine.Validate(); err != nil {
		return err
	}
	if !c.Engine.Distributed() {
		if c.Engine.Redis != "" || c.Engine.Brokers != "" {
			return errors.New("redis and kafka-brokers need store dynamodb")
		}
		return nil
	}
	switch {
	case c.Engine.Redis == "":
		return errors.New("store dynamodb needs redis, through which servers find each other")
	case c.KeyFile == "":
		return errors.New("store dynamodb needs key-file: all servers must have the same key")
	}
	if c.LinkAddress == "" && everywhere(c.LinkListen) {
		return errors.New("link-address is needed where link-listen is all addresses: others must find one")
	}
	if _, port, err := net.SplitHostPort(c.LinkAddress); c.LinkAddress != "" && (err != nil || port == "0" || everywhere(c.LinkAddress)) {
		return fmt.Errorf("link-address must be one address that other processes can call, not %q", c.LinkAddress)
	}
	_, err := engine.MutualTLS(c.LinkCA, c.LinkCert, c.LinkKey)
	return err
}

// everywhere reports whether an address is all of a machine's.
func everywhere(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err != nil || host == "" || (ip != nil && ip.IsUnspecified())
}

// loadKey reads the key that signs tokens, and from which other secrets are derived.
func (c Config) loadKey() (*auth.Key, error) {
	if c.KeyFile != "" {
		return auth.ReadKey(c.KeyFile)
	}
	return auth.LoadKey(c.DataDir)
}
