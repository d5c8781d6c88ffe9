package engine

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/aws/smithy-go"

	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// storeAddr is where DynamoDB is, for people.
func (c Config) storeAddr() string {
	if c.Endpoint == "" {
		return "DynamoDB"
	}
	return c.Endpoint
}

// ExplainStore says in one line what DynamoDB's first error means for whoever has set it
// up: the SDK's own words tell of its layers. Other errors, and none, stay as they are.
func ExplainStore(cfg Config, err error) error {
	if err == nil {
		return nil
	}
	at := cfg.storeAddr()
	var (
		api       smithy.APIError
		op        *net.OpError
		answer    *smithy.DeserializationError
		authority x509.UnknownAuthorityError
	)
	switch {
	case errors.Is(err, wire.ErrNoTables):
		return fmt.Errorf("dynamo: %s*: %w", cfg.Prefix, wire.ErrNoTables)
	case errors.As(err, &api):
		switch api.ErrorCode() {
		case "AccessDeniedException":
			return fmt.Errorf("dynamo: %s*: %s; `workers tables terraform` has the policies that are needed", cfg.Prefix, api.ErrorMessage())
		case "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException", "MissingAuthenticationTokenException":
			return fmt.Errorf("dynamo: AWS does not take the credentials: %s", api.ErrorMessage())
		}
	case strings.Contains(err.Error(), "get credentials"):
		return errors.New("dynamo: no credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile (AWS_PROFILE) or a role of this machine is needed")
	case errors.As(err, &authority):
		return fmt.Errorf("dynamo: the certificate of %s is not signed by an authority that this machine trusts", at)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no value for it
		return fmt.Errorf("dynamo: %s speaks no TLS: http:// is for DynamoDB Local", at)
	case errors.As(err, &answer), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), strings.Contains(err.Error(), "malformed HTTP"):
		return fmt.Errorf("dynamo: what answers at %s is not DynamoDB", at)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("dynamo: %s does not answer", at)
	case errors.As(err, &op):
		return fmt.Errorf("dynamo: %s cannot be reached: %w", at, op.Err)
	}
	return err
}
