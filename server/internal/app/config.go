package app

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/engine"
	registryapi "github.com/parley-chat/parley/server/registry/api"
)

// Defaults of the configuration.
const (
	DefaultListen  = "127.0.0.1:8080"
	DefaultDataDir = ".parley"
	DefaultKafka   = "127.0.0.1:9092"
	DefaultLink    = "127.0.0.1:8081"

	tokenTTL = 24 * time.Hour
)

// Config is what an operator can set, by flag, environment, or default, in this
// order.
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

	command string // "" serves, "token" prints a token
	user    string
}

// errUsage is an error of the command line.
type errUsage struct{ error }

// errHelp says that help was asked for and given.
var errHelp = errors.New("help")

const usage = `Parley: a chat server.

usage:
  server [flags]              run the server
  server [flags] token USER   print an access token for a user, for development

flags:
`

// parse reads the command line and the environment.
func parse(args []string, getenv func(string) string, out io.Writer) (Config, error) {
	var c Config
	fs := flag.NewFlagSet("server", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	text := func(p *string, name, env, fallback, help string) {
		if v := getenv(env); v != "" {
			fallback = v
		}
		fs.StringVar(p, name, fallback, help+" ("+env+")")
	}
	text(&c.Listen, "listen", "PARLEY_LISTEN", DefaultListen, "address to listen on; port 0 takes a free one")
	text(&c.DataDir, "data-dir", "PARLEY_DATA_DIR", DefaultDataDir, "directory of all data")
	text(&c.Kafka, "kafka-listen", "PARLEY_KAFKA_LISTEN", DefaultKafka, "loopback address of the Kafka port; if the default is in use, a free one is taken")
	text(&c.Registry, "registry-listen", "PARLEY_REGISTRY_LISTEN", registryapi.DefaultListen, "loopback address of the schema registry; if the default is in use, a free one is taken")
	c.Engine.Bind(text, getenv)
	text(&c.KeyFile, "key-file", "PARLEY_KEY_FILE", "", "PEM file of the Ed25519 key that all processes share; default: auth.key in the data directory")
	text(&c.LinkListen, "link-listen", "PARLEY_LINK_LISTEN", DefaultLink, "address for links from other processes, never for clients")
	text(&c.LinkAddress, "link-address", "PARLEY_LINK_ADDRESS", "", "host:port where other processes find link-listen; default: the same")
	text(&c.LinkCA, "link-ca", "PARLEY_LINK_CA", "", "file with the authority of all processes' certificates, for links with TLS")
	text(&c.LinkCert, "link-cert", "PARLEY_LINK_CERT", "", "file with this process's certificate")
	text(&c.LinkKey, "link-key", "PARLEY_LINK_KEY", "", "file with its key")
	var format string
	text(&format, "log-format", "PARLEY_LOG_FORMAT", "text", "text or json")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		fs.SetOutput(out)
		fs.PrintDefaults()
		return c, errHelp
	case err != nil:
		return c, errUsage{err}
	case format != "text" && format != "json":
		return c, errUsage{fmt.Errorf("log-format must be text or json, not %q", format)}
	case c.DataDir == "":
		return c, errUsage{errors.New("data-dir must not be empty")}
	}
	c.LogJSON = format == "json"
	if !isAddress(c.Listen) {
		return c, errUsage{fmt.Errorf("listen must be host:port, not %q", c.Listen)}
	}
	if !isAddress(c.Kafka) {
		return c, errUsage{fmt.Errorf("kafka-listen must be host:port, not %q", c.Kafka)}
	}
	if !isAddress(c.Registry) {
		return c, errUsage{fmt.Errorf("registry-listen must be host:port, not %q", c.Registry)}
	}
	if err := c.distributed(); err != nil {
		return c, errUsage{err}
	}
	switch rest := fs.Args(); {
	case len(rest) == 0:
	case rest[0] == "token" && len(rest) == 2:
		c.command, c.user = "token", rest[1]
		if !auth.UserID.MatchString(c.user) {
			return c, errUsage{fmt.Errorf("user id %.80q must be 1 to 64 letters, digits or underscores", c.user)}
		}
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
	case !isAddress(c.LinkListen):
		return fmt.Errorf("link-listen must be host:port, not %q", c.LinkListen)
	case c.LinkAddress != "" && !isAddress(c.LinkAddress):
		return fmt.Errorf("link-address must be host:port, not %q", c.LinkAddress)
	}
	if host, _, err := net.SplitHostPort(c.LinkListen); c.LinkAddress == "" {
		if ip := net.ParseIP(host); err != nil || host == "" || (ip != nil && ip.IsUnspecified()) {
			return errors.New("link-address is needed where link-listen is all addresses: others must find one")
		}
	}
	_, err := engine.MutualTLS(c.LinkCA, c.LinkCert, c.LinkKey)
	return err
}

// loadKey reads the key that signs tokens, and from which other secrets are derived.
func (c Config) loadKey() (*auth.Key, error) {
	if c.KeyFile != "" {
		return auth.ReadKey(c.KeyFile)
	}
	return auth.LoadKey(c.DataDir)
}

// isAddress reports whether s is host:port with a port's number.
func isAddress(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
