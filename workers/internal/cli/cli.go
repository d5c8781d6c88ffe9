// Package cli is the command line of the workers.
//
// It owns commands and exit codes; the settings are package config's. What the jobs are made of is in
// package jobs, what they do in a package each. Concurrency: Run is called once.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/config"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/kafka/access"
	"github.com/parley-chat/parley/server/kafka/capacity"
	"github.com/parley-chat/parley/server/kafka/inspect"
	"github.com/parley-chat/parley/server/kafka/reach"
	"github.com/parley-chat/parley/server/kafka/terraform"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/workers/internal/jobs"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitDiffer = 3 // verify found differences
)

var manual = config.Manual{
	Of: config.Workers, Name: "workers", Title: "Parley's workers.",
	Commands: []config.Command{
		{
			Name: "run", Args: "JOB...", About: "run jobs: relay, fanout, reconcile, registry, ops",
			More: "  relay      brings committed events to Kafka, in order per chat\n" +
				"  fanout     tells the servers of what it reads there\n" +
				"  reconcile  completes what crashes left half done\n" +
				"  registry   serves the schemas of events\n" +
				"  ops        answers the commands of operators\n" +
				"  Any number of processes may run the same jobs.\n",
		},
		{
			Name: "topics apply|verify|terraform", About: "make, check or print the topics of Kafka",
			More: "  verify also warns of brokers whose own settings are weak, which is no difference.\n" + verifyHelp,
		},
		{Name: "topics capacity", About: "print what the topics are made for"},
		{Name: "topics acl [apply|verify]", About: "print, make or check who may do what there", More: verifyHelp},
		{Name: "tables apply|verify|terraform", About: "make, check or print the tables of DynamoDB", More: verifyHelp},
		{Name: "schemas register|verify", About: "register the schemas of what this version publishes, or look whether they are", More: verifyHelp},
		{Name: "redis acl", About: "print the rules of the user that Redis needs"},
	},
	Other:      func(w io.Writer, words []string) bool { return opsctl.Help(w, "workers", words) },
	OtherUsage: "commands for operators, answered by workers with the job ops:\n" + opsUsage,
}

const verifyHelp = "  verify ends with 3 if something is not as declared.\n"

// settings are what an operator can set; package config says how.
type settings struct {
	jobs        jobs.Config
	logJSON     bool
	replication int16
	principals  access.Principals
	ops         opsClient
	warnings    []string
	args        []string
}

// errUsage is an error of the command line.
type errUsage struct{ error }

var (
	// errHelp says that help, or the version, was asked for and given.
	errHelp = errors.New("help")
	// errDiffer says that what is there is not as declared; it has been told already.
	errDiffer = errors.New("not as declared")
)

// Run runs the program with an environment like os.Environ's until ctx ends or it fails,
// and returns the exit code.
func Run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	s, err := parse(args, environ, stdout)
	if err == nil {
		for _, text := range s.warnings {
			fmt.Fprintf(stderr, "workers: warning: %s\n", text)
		}
		if opsctl.Is(s.args) {
			return s.operate(ctx, stdout, stderr)
		}
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

func parse(args, environ []string, out io.Writer) (settings, error) {
	if done, err := manual.Answer(out, args); err != nil {
		return settings{}, errUsage{err}
	} else if done {
		return settings{}, errHelp
	}
	v, rest, err := config.Read(config.Workers, args, environ)
	if err != nil {
		return settings{}, errUsage{err}
	}
	s := settings{
		jobs: jobs.Config{
			Listen: v.Get("PARLEY_WORKERS_LISTEN"), KeyFile: v.Get("PARLEY_KEY_FILE"), Slots: v.Int("PARLEY_RELAY_SLOTS"),
			LinkCA: v.Get("PARLEY_LINK_CA"), LinkCert: v.Get("PARLEY_LINK_CERT"), LinkKey: v.Get("PARLEY_LINK_KEY"),
			Registry: jobs.SchemaRegistry{
				Listen: v.Get("PARLEY_REGISTRY_LISTEN"), Password: v.Secret("PARLEY_REGISTRY_PASSWORD").Reveal(),
				WritePassword: v.Secret("PARLEY_REGISTRY_WRITE_PASSWORD").Reveal(), Cert: v.Get("PARLEY_REGISTRY_CERT"), Key: v.Get("PARLEY_REGISTRY_KEY"),
			},
			RegisterSchemas: v.Get("PARLEY_REGISTER_SCHEMAS") == "on",
			Ops:             v.Get("PARLEY_OPS_LISTEN"),
		},
		ops:     opsClient{v.Get("PARLEY_OPS_ADDRESS"), v.Get("PARLEY_OPERATOR"), v.Secret("PARLEY_OPS_TOKEN")},
		logJSON: v.Get("PARLEY_LOG_FORMAT") == "json", replication: int16(v.Int("PARLEY_REPLICATION")), warnings: v.Warnings, args: rest,
	}
	if s.jobs.Engine, err = engine.Configure(v); err != nil {
		return s, errUsage{err}
	}
	if s.jobs.Engine.Mode = v.Get("PARLEY_STORE"); !s.jobs.Engine.Distributed() {
		return s, errUsage{fmt.Errorf("store must be dynamodb, not %.40q: the embedded server runs its workers itself", s.jobs.Engine.Mode)}
	}
	if err := s.jobs.Engine.Validate(); err != nil {
		return s, errUsage{err}
	}
	if s.principals, err = access.ParsePrincipals(v.Get("PARLEY_KAFKA_PRINCIPALS")); err != nil {
		return s, errUsage{err}
	}
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
	case "schemas":
		return s.schemas(ctx, verb, stdout)
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

// Bounds of a command on topics or tables: making a table takes a while, being answered
// at all does not.
const (
	adminTime = 10 * time.Minute
	reachTime = 10 * time.Second
)

func (s settings) topics(ctx context.Context, verb string, stdout io.Writer) (err error) {
	defer func() { err = access.Explain(err) }()
	switch verb {
	case "terraform":
		_, err := io.WriteString(stdout, terraform.Topics()+access.Terraform(s.principals))
		return err
	case "capacity":
		_, err := io.WriteString(stdout, capacity.Sheet())
		return err
	case "acl":
		_, err := fmt.Fprintln(stdout, strings.Join(access.Commands(s.principals), "\n"))
		return err
	case "apply", "verify", "acl apply", "acl verify":
	default:
		return errUsage{errors.New("topics needs apply, verify, terraform, capacity, acl, acl apply or acl verify")}
	}
	cluster, err := s.jobs.Engine.Cluster()
	if err != nil {
		return errUsage{err}
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	a, err := reach.Connect(ctx, cluster, reachTime)
	if err != nil {
		return err
	}
	defer a.Close()
	if err := versions.Discover(ctx, a); err != nil {
		return err
	}
	switch verb {
	case "apply":
		did, err := a.Apply(ctx, s.replication)
		return told(stdout, did, "topics are as declared", err)
	case "acl apply":
		did, err := access.Apply(ctx, a.Client(), s.principals)
		return told(stdout, did, "rights are as declared", err)
	case "acl verify":
		lines, err := access.Verify(ctx, a.Client(), s.principals)
		if err != nil {
			return err
		}
		return differ(stdout, lines, "rights are as declared")
	}
	differences, err := a.Verify(ctx, s.replication)
	if err != nil {
		return err
	}
	warnings, err := inspect.Warnings(ctx, a.Client(), s.replication)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		if _, err := fmt.Fprintln(stdout, "warning:", w); err != nil {
			return err
		}
	}
	lines := make([]string, len(differences))
	for i, d := range differences {
		lines[i] = d.String()
	}
	return differ(stdout, lines, "topics are as declared")
}

func (s settings) tables(ctx context.Context, verb string, stdout io.Writer) (err error) {
	defer func() { err = engine.ExplainStore(s.jobs.Engine, err) }()
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
		return told(stdout, did, "tables are as declared", err)
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

// told prints what was done, all of it or up to an error.
func told(w io.Writer, did []string, none string, err error) error {
	if err != nil && len(did) == 0 {
		return err
	}
	return errors.Join(tell(w, did, none), err)
}

func differ(w io.Writer, lines []string, none string) error {
	if err := tell(w, lines, none); err != nil || len(lines) == 0 {
		return err
	}
	return errDiffer
}
