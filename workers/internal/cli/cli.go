// Package cli is the command line of the workers.
//
// It owns flags, variables, commands and exit codes. What the jobs are made of is in
// package jobs, what they do in a package each. Concurrency: Run is called once.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/kafka"
	registryapi "github.com/parley-chat/parley/server/registry/api"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/workers/internal/jobs"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitDiffer = 3 // verify found differences
)

const usage = `Parley's workers.

usage:
  workers [flags] run JOB...                      run jobs: relay, fanout, reconcile, registry
  workers [flags] topics apply|verify|terraform   make, check or print the topics of Kafka
  workers [flags] tables apply|verify|terraform   make, check or print the tables of DynamoDB
  workers [flags] redis acl                       print the rules of the user that Redis needs

verify ends with 3 if something is not as declared.

flags:
`

// settings are what an operator can set, by flag, environment, or default, in this
// order.
type settings struct {
	jobs        jobs.Config
	logJSON     bool
	replication int16
	args        []string
}

// errUsage is an error of the command line.
type errUsage struct{ error }

var (
	// errHelp says that help was asked for and given.
	errHelp = errors.New("help")
	// errDiffer says that what is there is not as declared; it has been told already.
	errDiffer = errors.New("not as declared")
)

// Run runs the program until ctx ends or it fails, and returns the exit code.
func Run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	s, err := parse(args, getenv, stdout)
	if err == nil {
		err = s.command(ctx, stdout, stderr)
	}
	var wrong errUsage
	switch {
	case err == nil, errors.Is(err, errHelp):
		return exitOK
	case errors.Is(err, errDiffer):
		return exitDiffer
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "workers: %v; --help lists what there is\n", err)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "workers: %v\n", err)
		return exitFailed
	}
}

func parse(args []string, getenv func(string) string, out io.Writer) (settings, error) {
	var s settings
	fs := flag.NewFlagSet("workers", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	text := func(p *string, name, env, fallback, help string) {
		if name == "store" {
			// The embedded server is its own worker.
			fallback, help = engine.DynamoDB, "dynamodb is the one store that workers of their own have"
		}
		if v := getenv(env); v != "" {
			fallback = v
		}
		fs.StringVar(p, name, fallback, help+" ("+env+")")
	}
	c := &s.jobs
	c.Engine.Bind(text, getenv)
	var replication, slots, format string
	text(&c.Registry, "registry-listen", "PARLEY_REGISTRY_LISTEN", registryapi.DefaultListen, "address of the schema registry; beyond loopback its clients need the password in PARLEY_REGISTRY_PASSWORD")
	c.Password = getenv("PARLEY_REGISTRY_PASSWORD")
	text(&c.Listen, "listen", "PARLEY_WORKERS_LISTEN", "127.0.0.1:0", "address of health and metrics; port 0 takes a free one")
	text(&c.KeyFile, "key-file", "PARLEY_KEY_FILE", "", "PEM file of the Ed25519 key that all processes share, for links to servers")
	text(&c.LinkCA, "link-ca", "PARLEY_LINK_CA", "", "file with the authority of all processes' certificates, for links with TLS")
	text(&c.LinkCert, "link-cert", "PARLEY_LINK_CERT", "", "file with this process's certificate")
	text(&c.LinkKey, "link-key", "PARLEY_LINK_KEY", "", "file with its key")
	text(&slots, "relay-slots", "PARLEY_RELAY_SLOTS", "8", "parts in which relays share the work; the same in all processes")
	text(&replication, "replication", "PARLEY_REPLICATION", strconv.Itoa(kafka.Replication), "replicas of each partition that topics are made with and checked for")
	text(&format, "log-format", "PARLEY_LOG_FORMAT", "text", "text or json")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		fs.SetOutput(out)
		fs.PrintDefaults()
		return s, errHelp
	case err != nil:
		return s, errUsage{err}
	case format != "text" && format != "json":
		return s, errUsage{fmt.Errorf("log-format must be text or json, not %.40q", format)}
	}
	if _, _, err := net.SplitHostPort(c.Registry); err != nil {
		return s, errUsage{fmt.Errorf("registry-listen must be host:port, not %.100q", c.Registry)}
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return s, errUsage{fmt.Errorf("listen must be host:port, not %.100q", c.Listen)}
	}
	n, err := strconv.Atoi(slots)
	if c.Slots = n; err != nil || n < 1 || n > jobs.MaxSlots {
		return s, errUsage{fmt.Errorf("relay-slots must be 1 to %d, not %.40q", jobs.MaxSlots, slots)}
	}
	r, err := strconv.ParseInt(replication, 10, 16)
	if s.replication = int16(r); err != nil || r < 1 {
		return s, errUsage{fmt.Errorf("replication must be a number from 1 on, not %.40q", replication)}
	}
	if !c.Engine.Distributed() {
		return s, errUsage{fmt.Errorf("store must be dynamodb, not %.40q: the embedded server runs its workers itself", c.Engine.Mode)}
	}
	if err := c.Engine.Validate(); err != nil {
		return s, errUsage{err}
	}
	s.logJSON, s.args = format == "json", fs.Args()
	return s, nil
}

func (s settings) command(ctx context.Context, stdout, stderr io.Writer) error {
	if len(s.args) == 0 {
		return errUsage{errors.New("no command")}
	}
	verb := strings.Join(s.args[1:], " ")
	switch s.args[0] {
	case "run":
		return s.run(ctx, stderr)
	case "topics":
		return s.topics(ctx, verb, stdout)
	case "tables":
		return s.tables(ctx, verb, stdout)
	case "redis":
		if verb != "acl" {
			return errUsage{errors.New("redis acl is the one command on redis")}
		}
		_, err := fmt.Fprintln(stdout, strings.Join(routing.ACL(s.jobs.Engine.RedisPrefix), " "))
		return err
	default:
		return errUsage{fmt.Errorf("unknown command %.40q", s.args[0])}
	}
}

func (s settings) run(ctx context.Context, stderr io.Writer) error {
	c := s.jobs
	c.Jobs, c.Logger = slices.Compact(slices.Sorted(slices.Values(s.args[1:]))), telemetry.NewLogger(stderr, s.logJSON)
	if err := c.Validate(); err != nil {
		return errUsage{err}
	}
	return jobs.Run(ctx, c)
}

// adminTime bounds a command on topics or tables: making a table takes a while.
const adminTime = 10 * time.Minute

func (s settings) topics(ctx context.Context, verb string, stdout io.Writer) error {
	if verb == "terraform" {
		_, err := io.WriteString(stdout, kafka.TerraformTopics())
		return err
	}
	if verb != "apply" && verb != "verify" {
		return errUsage{errors.New("topics needs apply, verify or terraform")}
	}
	cluster, err := s.jobs.Engine.Cluster()
	if err != nil {
		return errUsage{err}
	}
	a, err := kafka.NewAdmin(cluster)
	if err != nil {
		return err
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	if verb == "apply" {
		did, err := a.Apply(ctx, s.replication)
		return errors.Join(tell(stdout, did, "topics are as declared"), err)
	}
	differences, err := a.Verify(ctx, s.replication)
	if err != nil {
		return err
	}
	lines := make([]string, len(differences))
	for i, d := range differences {
		lines[i] = d.String()
	}
	return differ(stdout, lines, "topics are as declared")
}

func (s settings) tables(ctx context.Context, verb string, stdout io.Writer) error {
	if verb == "terraform" {
		_, err := io.WriteString(stdout, engine.TerraformTables(s.jobs.Engine))
		return err
	}
	if verb != "apply" && verb != "verify" {
		return errUsage{errors.New("tables needs apply, verify or terraform")}
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	t, err := engine.OpenTables(ctx, s.jobs.Engine)
	if err != nil {
		return err
	}
	defer t.Close()
	if verb == "apply" {
		did, err := t.Apply(ctx)
		return errors.Join(tell(stdout, did, "tables are as declared"), err)
	}
	lines, err := t.Verify(ctx)
	if err != nil {
		return err
	}
	return differ(stdout, lines, "tables are as declared")
}

// tell prints lines, or that there are none.
func tell(w io.Writer, lines []string, none string) error {
	if len(lines) == 0 {
		lines = []string{none}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

func differ(w io.Writer, lines []string, none string) error {
	if err := tell(w, lines, none); err != nil || len(lines) == 0 {
		return err
	}
	return errDiffer
}
