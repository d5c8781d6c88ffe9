package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/config"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/store"
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
	// WebOrigins are those of the web pages that may call the API.
	WebOrigins []string
	// Edge bounds what clients can take.
	Edge edgeConfig
	// Demo says that a server that is alone has two users to try it with, and prints their
	// tokens.
	Demo     bool
	MaxChats int // that a user can be a member of; 0: as many as package chat has it

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

	repair  bool   // of the check
	command string // "" serves, "check" checks the data, "token" prints a token, "kafka" how to read the log, "ops" is an operator's
	user    string
	args    []string // of an operator's command
}

// errUsage is an error of the command line.
type errUsage struct{ error }

// errHelp says that help, or the version, was asked for and given.
var errHelp = errors.New("help")

var manual = config.Manual{
	Of: config.Server, Name: "server", Title: "Parley: a chat server.",
	Commands: []config.Command{
		{About: "run the server"},
		{
			Name: "token", Args: "USER", About: "print an access token for a user, for development",
			More: "  It needs the key in the data directory, or key-file, and works while the server runs. The token is\n" +
				"  good for 24 hours. The user exists from the first call with it on.\n",
		},
		{Name: "check", Args: "[--repair]", About: "check the data of a server that does not run, and repair what can be derived", More: checkMore},
		{Name: "kafka", About: "print how to read the event log with kcat and other clients"},
	},
	Other:      func(w io.Writer, words []string) bool { return opsctl.Help(w, "server", words) },
	OtherUsage: "commands for operators, while the server runs:\n" + opsUsage,
}

// parse reads the settings and the command.
func parse(args, environ []string, out io.Writer) (Config, error) {
	if done, err := manual.Answer(out, args); err != nil {
		return Config{}, errUsage{err}
	} else if done {
		return Config{}, errHelp
	}
	v, rest, err := config.Read(config.Server, args, environ)
	if err != nil {
		return Config{}, errUsage{err}
	}
	c := Config{
		Listen: v.Get("PARLEY_LISTEN"), DataDir: v.Get("PARLEY_DATA_DIR"), Kafka: v.Get("PARLEY_KAFKA_LISTEN"), Registry: v.Get("PARLEY_REGISTRY_LISTEN"),
		LogJSON: v.Get("PARLEY_LOG_FORMAT") == "json", MaxChats: v.Int("PARLEY_MAX_CHATS_PER_USER"), KeyFile: v.Get("PARLEY_KEY_FILE"),
		LinkListen: v.Get("PARLEY_LINK_LISTEN"), LinkAddress: v.Get("PARLEY_LINK_ADDRESS"),
		LinkCA: v.Get("PARLEY_LINK_CA"), LinkCert: v.Get("PARLEY_LINK_CERT"), LinkKey: v.Get("PARLEY_LINK_KEY"),
		OpsListen: v.Get("PARLEY_OPS_LISTEN"), ops: opsClient{v.Get("PARLEY_OPS_ADDRESS"), v.Get("PARLEY_OPERATOR"), v.Secret("PARLEY_OPS_TOKEN")},
		WebOrigins: v.Origins("PARLEY_WEB_ORIGINS"), Demo: v.Get("PARLEY_DEMO_USERS") == "on",
		warnings: v.Warnings, Edge: readEdge(v),
	}
	if c.Engine, err = engine.Configure(v); err != nil {
		return c, errUsage{err}
	}
	c.Engine.Mode, c.Engine.AcceptLoss = v.Get("PARLEY_STORE"), v.Get("PARLEY_ACCEPT_LOSS")
	if err := c.distributed(); err != nil {
		return c, errUsage{err}
	}
	return c, c.chooses(rest)
}

// chooses takes the command behind the flags.
func (c *Config) chooses(rest []string) error {
	switch {
	case len(rest) == 0:
		return nil
	case rest[0] == "kafka" && len(rest) == 1:
		c.command = "kafka"
		return nil
	case rest[0] == "check":
		c.command = "check"
		for _, flag := range rest[1:] {
			if flag != "--repair" && flag != "-repair" {
				return errUsage{fmt.Errorf("check takes --repair and nothing else, not %.40q", flag)}
			}
			c.repair = true
		}
		return nil
	case opsctl.Is(rest):
		c.command, c.args = "ops", rest
		return nil
	case rest[0] != "token":
		return errUsage{fmt.Errorf("unknown command %.40q", rest[0])}
	}
	users := rest[1:]
	switch {
	case len(users) > 0 && users[0] == "--":
		users = users[1:]
	case len(users) > 0 && strings.HasPrefix(users[0], "-"):
		return errUsage{fmt.Errorf("%.40q: flags go before the command; a user id that begins with a dash goes behind --", users[0])}
	}
	if len(users) != 1 {
		return errUsage{errors.New("token needs one user id")}
	}
	if err := auth.CheckUserID(users[0]); err != nil {
		return errUsage{err}
	}
	c.command, c.user = "token", users[0]
	return nil
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

// loadKey reads the key that signs tokens, and from which other secrets are derived. One
// of its own is made where used says that there are no data yet.
func (c Config) loadKey(used func() (bool, error)) (*auth.Key, error) {
	if c.KeyFile != "" {
		return auth.ReadKey(c.KeyFile)
	}
	path := filepath.Join(c.DataDir, auth.KeyFile)
	k, err := auth.ReadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	// With another key everybody would have to sign in and to synchronise anew.
	if data, err := used(); err != nil || data {
		return nil, errors.Join(err, fmt.Errorf("%s is missing, and there are data: put it back, or make another, which ends all sessions (openssl genpkey -algorithm ed25519 -out %s, mode 0600)", path, path))
	}
	return auth.LoadKey(c.DataDir)
}

// hasStore says whether there are data, by the files alone.
func (c Config) hasStore() bool {
	_, err := os.Stat(filepath.Join(c.DataDir, "store"))
	return err == nil
}

// hasUsers says whether there are data, by the users: a first start that was cut off left
// a store without any.
func hasUsers(ctx context.Context, st store.Store) func() (bool, error) {
	return func() (bool, error) {
		page, err := st.Scan(ctx, store.Scan{Table: store.Users, Segments: 1, Limit: 1})
		return err == nil && len(page.Rows) > 0, err
	}
}
