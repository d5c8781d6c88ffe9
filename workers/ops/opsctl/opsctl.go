// Package opsctl is the command line of operators: dead letters, replay, and consumer
// groups. Both binaries have it, as commands of their own.
//
// It owns flags, output and exit codes; all work is done by the service behind
// parley.ops.v1, in a running server or in workers with the job ops. Concurrency: Run is
// called once.
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
  %[1]s [flags] replay                                        publish events once more
  %[1]s [flags] outbox failed|mend|drop                       rows of the outbox that cannot be published
  %[1]s [flags] groups describe|hot-keys                      how far consumer groups are behind, and why
  %[1]s [flags] audit                                         what operators did
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
		fmt.Fprintf(cfg.Stderr, "%s: %s\n", cfg.Program, explain(err))
		return ExitFailed
	}
}

// explain puts an error into one line.
func explain(err error) string {
	var remote *connect.Error
	if !errors.As(err, &remote) {
		return err.Error()
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Sprintf("nobody serves operators at %s (%v): is the server running, or workers with the job ops? --ops-address says where", op.Addr, op.Err)
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
	bind  func(fs *flag.FlagSet) func(c *call, args []string) error // nil: issueToken
}

var commandGroups = map[string]map[string]command{
	"deadletters": {
		"list":    {"", "list dead letters", listLetters},
		"count":   {"", "count dead letters by group, topic and reason", countLetters},
		"show":    {"ID", "show one, with its record and event", showLetter},
		"redrive": {"[ID…]", "hand open dead letters to their consumers again", redriveLetters},
		"discard": {"[ID…]", "give open dead letters up", discardLetters},
	},
	"replay": {"": {"", "publish events once more that were published before", replayEvents}},
	"outbox": {
		"failed": {"", "list rows of the outbox that cannot be published", failedRows},
		"mend":   {"ROW", "replace one by what the event store says it should be", mendRow},
		"drop":   {"ROW", "give one up; its events can still be replayed", dropRow},
	},
	"audit": {"": {"", "list what operators changed, and who saw what users wrote", listCalls}},
	"migration": {
		"run":    {"TOPIC", "move a topic to another number of partitions, or go on with it", migrateTopic},
		"status": {"", "list the versions of the topics, and what is being migrated", migrationStatus},
		"abort":  {"", "undo a migration whose new topic is not published to yet", abortMigration},
		"retire": {"NAME", "have nobody read an old version any more, after its retention", retireTopic},
	},
	"operators": {"token": {"NAME", "print a token for an operator, good for 12 hours", nil}},
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
	json   bool
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
	operator := fs.String("operator", cmp.Or(cfg.Operator, systemUser()), "name for the audit, unless PARLEY_OPS_TOKEN holds a token (PARLEY_OPERATOR)")
	asJSON := fs.Bool("json", false, "print JSON, one message a line")
	do := issueToken
	if cmd.bind != nil {
		do = cmd.bind(fs)
	}
	switch err := fs.Parse(rest); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(cfg.Stdout, "%s %s [flags] %s: %s\n\nflags:\n", cfg.Program, name, cmd.args, cmd.about)
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
	if cmd.bind == nil {
		return do(c, fs.Args())
	}
	token, err := cfg.token(*operator)
	if err != nil {
		return err
	}
	c.client = cfg.client(*address, token)
	return do(c, fs.Args())
}

// issueTime is how long a token is valid that an operator asks for.
const issueTime = 12 * time.Hour

// issueToken prints a token; it needs only the key's file.
func issueToken(c *call, args []string) error {
	if len(args) != 1 || !auth.OperatorName.MatchString(args[0]) {
		return errUsage{errors.New("operators token needs a name of letters, digits, dots, dashes, underscores and at signs")}
	}
	key, err := c.cfg.Key()
	if err != nil {
		return err
	}
	token, err := key.IssueOperator(args[0], time.Now(), issueTime)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.cfg.Stdout, token)
	return err
}

// tokenTime is how long a token made here is valid: it is used at once.
const tokenTime = 5 * time.Minute

func (cfg Config) token(operator string) (string, error) {
	if cfg.Token != "" {
		return cfg.Token, nil
	}
	key, err := cfg.Key()
	if err != nil {
		return "", fmt.Errorf("no operator's token in PARLEY_OPS_TOKEN, and no key to make one with: %w", err)
	}
	return key.IssueOperator(operator, time.Now(), tokenTime)
}

func (cfg Config) client(address, token string) opsv1connect.OpsServiceClient {
	var protocols http.Protocols
	protocols.SetHTTP2(cfg.TLS != nil)
	protocols.SetUnencryptedHTTP2(cfg.TLS == nil)
	tr := &http.Transport{
		Protocols: &protocols, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second, WriteByteTimeout: 10 * time.Second},
	}
	scheme := "http://"
	if cfg.TLS != nil {
		tr.TLSClientConfig, scheme = cfg.TLS.Clone(), "https://"
	}
	// No redirect, no proxy: the token is for this address.
	hc := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return opsv1connect.NewOpsServiceClient(hc, scheme+address, connect.WithInterceptors(bearer(token)))
}

// bearer adds a token to each call.
type bearer string

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, req)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

func (bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// systemUser is who runs the command, as far as the system knows.
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
