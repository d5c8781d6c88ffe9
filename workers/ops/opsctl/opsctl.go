// Package opsctl is the command line of operators: dead letters, the event store, replay,
// consumer groups and projections. Both binaries have it, as commands of their own.
//
// It owns flags, output and exit codes; all work is done by the service behind
// parley.ops.v1, in a running server or in workers with the job ops. Concurrency: Run is
// called once.
//
// It is one package because all commands stand in one table and share a call's flags, token,
// paging, dry run and output.
package opsctl

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/user"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/client/bearer"
)

// Exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
	ExitLeft   = 3 // some of what was selected was not done
)

// Usage lists the commands, in the form that both binaries print.
const Usage = `  %[1]s [flags] deadletters list|count|show|redrive|discard   records that consumers could not process
  %[1]s [flags] parked list|release                           keys that wait behind a dead letter, by consumer group
  %[1]s [flags] events list|show|fold                         the event store, and what a chat was
  %[1]s [flags] replay                                        publish events once more
  %[1]s [flags] outbox failed|mend|drop                       rows of the outbox that cannot be published
  %[1]s [flags] groups describe|hot-keys                      how far consumer groups are behind, and why
  %[1]s [flags] audit                                         what operators did
  %[1]s [flags] projections list|rebuild|pause|resume|cancel  tables that follow from events, made again
  %[1]s [flags] notifications                                 what which consumer could not process
  %[1]s [flags] activity CHAT                                 messages and senders of a chat by day
  %[1]s [flags] migration run|status|abort|retire             move a topic to more partitions, while everything runs
  %[1]s [flags] operators token NAME                          print a token for an operator
`

// Config says where the commands run.
type Config struct {
	Program  string // name of the binary, for messages
	Address  string // of the service
	Operator string // name for the audit; "": the system's user
	// Token is an operator's; "": one is made with Key, the installation's key.
	Token          string
	Key            func() (*auth.Key, error)
	TLS            *tls.Config // certificates for the service; nil for none
	Stdout, Stderr io.Writer
}

// Is reports whether a command line is for this package.
func Is(args []string) bool { return len(args) > 0 && commandGroups[args[0]] != nil }

// errUsage is an error of the command line.
type errUsage struct{ error }

var (
	errLeft = errors.New("left") // the output has said what was not done
	errHelp = errors.New("help")
)

// Run runs a command until ctx ends, and returns the exit code.
func Run(ctx context.Context, cfg Config, args []string) int {
	err := run(ctx, cfg, args)
	var usage errUsage
	switch {
	case err == nil, errors.Is(err, errHelp):
		return ExitOK
	case errors.Is(err, errLeft):
		return ExitLeft
	case errors.As(err, &usage):
		fmt.Fprintf(cfg.Stderr, "%s: %v; --help after the command lists its flags\n", cfg.Program, err)
		return ExitUsage
	default:
		fmt.Fprintf(cfg.Stderr, "%s: %s\n", cfg.Program, Explain(err))
		return ExitFailed
	}
}

// Explain puts an error of a call into one line.
func Explain(err error) string {
	var remote *connect.Error
	if !errors.As(err, &remote) {
		return err.Error()
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Sprintf("no server answers operators at %s (%v): is the server running, or workers with the job ops? --ops-address says where", op.Addr, op.Err)
	}
	if remote.Code() == connect.CodeUnknown || remote.Code() == connect.CodeUnavailable && !connect.IsWireError(err) {
		return strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return strings.ReplaceAll(remote.Message(), "\n", " ")
}

// command is one command: it declares its flags and returns what to do with the rest of
// the line.
type command struct {
	args  string // after the flags
	about string
	bind  func(fs *flag.FlagSet) func(c *call, args []string) error
}

var commandGroups = map[string]map[string]command{
	"deadletters": {
		"list":    {"", "list dead letters", listLetters},
		"count":   {"", "count dead letters by group, topic and reason", countLetters},
		"show":    {"ID", "show one, with its record and event", showLetter},
		"redrive": {"[ID…]", "hand open dead letters to their consumers again", redriveLetters},
		"discard": {"[ID…]", "give open dead letters up", discardLetters},
	},
	"events": {
		"list": {"", "list events by chat, type, time, cause and status", listEvents},
		"show": {"CHAT VERSION", "show one", showEvent},
		"fold": {"CHAT", "derive from its events what a chat was at a version or a time", foldChat},
	},
	"replay": {"": {"", "publish events again, or have the relay retry failed rows", replayEvents}},
	"outbox": {
		"failed": {"", "list rows of the outbox that cannot be published", failedRows},
		"mend":   {"ROW", "replace one by what the event store says it should be", mendRow},
		"drop":   {"ROW", "give one up; its events can still be replayed", dropRow},
	},
	"audit": {"": {"", "list what operators changed, and who saw what users wrote", listCalls}},
	"migration": {
		"run":    {"TOPIC", "move a topic to another number of partitions, or resume the move", migrateTopic},
		"status": {"", "list the versions of the topics, and what is being migrated", migrationStatus},
		"abort":  {"", "undo a migration whose new topic is not published to yet", abortMigration},
		"retire": {"NAME", "stop all reads of an old version, after its retention", retireTopic},
	},
	"parked": {
		"list":    {"", "list the keys whose records wait behind a dead letter", listParked},
		"release": {"GROUP TOPIC KEY", "redrive or discard all dead letters of a key, in order", releaseParked},
	},
	"projections": {
		"list":    {"", "list the projections and how far their rebuilds are", listProjections},
		"rebuild": {"NAME", "make a projection again beside the live one, and show how far it is", rebuildProjection},
		"pause":   {"NAME", "let a rebuild wait", pauseRebuild},
		"resume":  {"NAME", "resume a paused rebuild", resumeRebuild},
		"cancel":  {"NAME", "drop what a rebuild has made", cancelRebuild},
	},
	"notifications": {"": {"", "list which events which consumer could not process, and what became of them", listNotifications}},
	"activity":      {"": {"CHAT", "show how many messages a chat had on each day, and from how many users", chatActivity}},
	"operators":     {"token": {"NAME", "print a token for an operator, good for 12 hours", issueToken}},
	"groups": {
		"describe": {"GROUP", "members of a consumer group, and how far it is behind", describeGroup},
		"hot-keys": {"GROUP TOPIC PARTITION", "most frequent keys among a partition's unread records", hotKeys},
	},
}

// call is a command that runs.
type call struct {
	ctx    context.Context //nolint:containedctx // of the one command that this is
	cfg    Config
	client opsv1connect.OpsServiceClient
	events opsv1connect.EventServiceClient
	// projections is the client of the service of projections.
	projections opsv1connect.ProjectionServiceClient
	parked      opsv1connect.ParkedKeyServiceClient
	json        bool
}

func run(ctx context.Context, cfg Config, args []string) error {
	name, verbs := args[0], commandGroups[args[0]]
	rest := args[1:]
	cmd, ok := verbs[""]
	if !ok {
		if len(rest) == 0 {
			return errUsage{fmt.Errorf("%s needs one of %s", name, verbsOf(verbs))}
		}
		if cmd, ok = verbs[rest[0]]; !ok {
			return errUsage{fmt.Errorf("%s has no %.40q, but %s", name, rest[0], verbsOf(verbs))}
		}
		name, rest = name+" "+rest[0], rest[1:]
	}
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	address := fs.String("ops-address", cfg.Address, "host:port where operators are served (PARLEY_OPS_ADDRESS)")
	operator := fs.String("operator", cfg.OperatorName(),
		"name for the audit, unless PARLEY_OPS_TOKEN holds a token (PARLEY_OPERATOR)")
	asJSON := fs.Bool("json", false, "print JSON, one message a line")
	do := cmd.bind(fs)
	switch err := fs.Parse(rest); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(cfg.Stdout, "%s\n\nflags:\n", cmd.usage(cfg.Program, name))
		fs.SetOutput(cfg.Stdout)
		fs.PrintDefaults()
		return errHelp
	case err != nil:
		return errUsage{err}
	}
	if _, _, err := net.SplitHostPort(*address); err != nil {
		return errUsage{fmt.Errorf("ops-address must be host:port, not %.100q", *address)}
	}
	c := &call{ctx: ctx, cfg: cfg, json: *asJSON}
	if name == "operators token" { // needs the key's file, and no server
		return do(c, fs.Args())
	}
	tokens := bearer.New(cfg.Tokens(*operator))
	if _, err := tokens.Token(ctx, false); err != nil {
		return err
	}
	hc, url := cfg.HTTP(*address)
	c.client = opsv1connect.NewOpsServiceClient(hc, url, connect.WithInterceptors(tokens))
	c.events = opsv1connect.NewEventServiceClient(hc, url, connect.WithInterceptors(tokens))
	c.projections = opsv1connect.NewProjectionServiceClient(hc, url, connect.WithInterceptors(tokens))
	c.parked = opsv1connect.NewParkedKeyServiceClient(hc, url, connect.WithInterceptors(tokens))
	return do(c, fs.Args())
}

// issueTime is how long a token is valid that an operator asks for.
const issueTime = 12 * time.Hour

// issueToken prints a token; it needs only the key's file.
func issueToken(fs *flag.FlagSet) func(*call, []string) error {
	role := fs.String("role", string(auth.Admin), "what the token is good for: viewer, moderator or admin")
	return func(c *call, args []string) error {
		if len(args) != 1 || !auth.OperatorName.MatchString(args[0]) {
			return errUsage{errors.New("operators token needs a name of letters, digits, dots, dashes, underscores and at signs")}
		}
		if !auth.Role(*role).Valid() {
			return errUsage{fmt.Errorf("role must be viewer, moderator or admin, not %.40q", *role)}
		}
		key, err := c.cfg.Key()
		if err != nil {
			return err
		}
		token, err := key.IssueRole(args[0], auth.Role(*role), time.Now(), issueTime)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(c.cfg.Stdout, token)
		return err
	}
}

// tokenTime is how long a token made here is valid: it is used at once.
const tokenTime = 5 * time.Minute

// Tokens is where an operator's tokens come from: Token, or the key.
func (cfg Config) Tokens(operator string) bearer.Source {
	return func(context.Context, bool) (string, error) {
		if cfg.Token != "" {
			return cfg.Token, nil
		}
		key, err := cfg.Key()
		if err != nil {
			return "", fmt.Errorf("no operator's token in PARLEY_OPS_TOKEN, and no key to make one with: %w", err)
		}
		return key.IssueOperator(operator, time.Now(), tokenTime)
	}
}

// HTTP returns a client for the services at an address, and their base URL.
func (cfg Config) HTTP(address string) (client *http.Client, baseURL string) {
	var protocols http.Protocols
	protocols.SetHTTP2(cfg.TLS != nil)
	protocols.SetUnencryptedHTTP2(cfg.TLS == nil)
	tr := &http.Transport{
		Protocols: &protocols, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second,
			WriteByteTimeout: 10 * time.Second},
	}
	scheme := "http://"
	if cfg.TLS != nil {
		tr.TLSClientConfig, scheme = cfg.TLS.Clone(), "https://"
	}
	// No redirect, no proxy: the token is for this address.
	return &http.Client{Transport: tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, scheme + address
}

// OperatorName is the name for the audit: the one that is set, or the system's user.
func (cfg Config) OperatorName() string { return cmp.Or(cfg.Operator, systemUser()) }

// systemUser is the user who runs the command, as far as the system knows.
func systemUser() string {
	u, err := user.Current()
	if err != nil {
		return "operator"
	}
	name := u.Username[strings.LastIndexByte(u.Username, '\\')+1:]
	if !auth.OperatorName.MatchString(name) {
		return "operator"
	}
	return name
}
