package backend

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"

	"github.com/aws/smithy-go"

	"github.com/parley-chat/parley/server/store/dynamo/tables"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// Tables says where DynamoDB's tables are.
type Tables struct {
	Prefix   string // of their names
	Region   string // "": AWS's own settings say
	Endpoint string // URL; "": the region's
}

func (t Tables) validate() error { return tables.ValidPrefix(t.Prefix) }

func (t Tables) wire() wire.Config { return wire.Config{Region: t.Region, Endpoint: t.Endpoint} }

// Open connects to where the tables are, or will be.
func (t Tables) Open(ctx context.Context) (*tables.Tables, error) {
	return tables.Open(ctx, t.wire(), t.Prefix)
}

// CheckRecovery logs, once and in a line for each, which features of DynamoDB are off without which
// the data cannot be restored, or are deleted by mistake.
func (t Tables) CheckRecovery(ctx context.Context, log *slog.Logger) {
	at, err := t.Open(ctx)
	if err == nil {
		defer at.Close()
		var lines []string
		if lines, err = at.Unprotected(ctx); err == nil {
			for _, line := range lines {
				log.Warn("a copy of the data cannot be restored, or a table can be deleted by mistake; enable it with: workers tables apply",
					"off", line)
			}
			return
		}
	}
	if ctx.Err() == nil {
		log.Info("whether the tables can be restored is not known", "error", t.Explain(err))
	}
}

// Terraform is the tables as Terraform's configuration.
func (t Tables) Terraform() string { return tables.Terraform(t.Prefix) }

// addr is where DynamoDB is, for people.
func (t Tables) addr() string { return cmp.Or(t.Endpoint, "DynamoDB") }

// Explain returns in one line what DynamoDB's first error means for the operator who has
// set it up: the SDK's own words are about its layers. Other errors, and none, stay as they
// are.
func (t Tables) Explain(err error) error {
	if err == nil {
		return nil
	}
	at := t.addr()
	var (
		api       smithy.APIError
		op        *net.OpError
		answer    *smithy.DeserializationError
		authority x509.UnknownAuthorityError
	)
	switch {
	case errors.Is(err, wire.ErrNoTables):
		return fmt.Errorf("dynamo: %s*: %w", t.Prefix, wire.ErrNoTables)
	case errors.As(err, &api):
		switch api.ErrorCode() {
		case "AccessDeniedException":
			return fmt.Errorf("dynamo: %s*: %s; `workers tables terraform` has the policies that are needed", t.Prefix,
				api.ErrorMessage())
		case "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException",
			"MissingAuthenticationTokenException":
			return fmt.Errorf("dynamo: AWS does not take the credentials: %s", api.ErrorMessage())
		}
	case strings.Contains(err.Error(), "get credentials"):
		return errors.New("dynamo: no credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile (AWS_PROFILE) or a role of this machine is needed")
	case errors.As(err, &authority):
		return fmt.Errorf("dynamo: the certificate of %s is not signed by an authority that this machine trusts", at)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no value for it
		return fmt.Errorf("dynamo: %s speaks no TLS: http:// is for DynamoDB Local", at)
	case errors.As(err, &answer), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		strings.Contains(err.Error(), "malformed HTTP"):
		return fmt.Errorf("dynamo: what answers at %s is not DynamoDB", at)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("dynamo: %s does not answer", at)
	case errors.As(err, &op):
		return fmt.Errorf("dynamo: %s cannot be reached: %w", at, op.Err)
	}
	return err
}
