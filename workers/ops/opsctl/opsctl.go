// Package opsctl is the command line of operators: dead letters, the event store, replay,
// consumer groups, projections, durable topics, users, chats, service accounts and the audit.
//
// It owns the commands with their flags and output; package cmdline owns help and exit codes. All
// work is done by the services behind parley.ops.v1, parley.admin.v1 and parley.topic.v1, in a running
// server or in workers with the job ops. They are called with an operator's token; commands on topics
// take a user's, too. Concurrency: commands are run one at a time.
//
// All commands are declared in one way (spec), and share a call's flags, token, paging, dry run and
// output. A program only adds them to its tree.
package opsctl

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/user"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/client/bearer"
)

// Config says where the commands find the services, and as whom they call them.
type Config struct {
	Address  string // of the service
	Operator string // name for the audit; "": the system's user
	// Token is an operator's; "": one is made with Key, the installation's key.
	Token string
	Key   func() (*auth.Key, error)
	TLS   *tls.Config // certificates for the service; nil for none
}

// groupID is the group of the commands in a program's tree.
const groupID = "operators"

// AddTo adds the commands that both programs have to a program's tree, under a title. config is
// called once one of them is chosen.
func AddTo(root *cobra.Command, title string, config func() (Config, error)) {
	root.AddGroup(&cobra.Group{ID: groupID, Title: title})
	ops := &program{config: config, explain: Explain}
	admin := &program{config: config, explain: explainAdmin}
	for _, c := range []*cobra.Command{
		ops.deadLetters(), ops.parkedKeys(), ops.events(), ops.replay(), ops.outbox(), ops.groups(), ops.migrations(),
		ops.projections(), ops.notifications(), ops.activity(), ops.tokens(),
		admin.users(), admin.sessions(), admin.services(), admin.chats(), admin.limits(), audit(ops, admin),
	} {
		c.GroupID = groupID
		root.AddCommand(c)
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
