package engine

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/aws/smithy-go"

	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// ExplainStore says in one line what DynamoDB's first error means for whoever has set it
// up: the SDK's own words tell of its layers. Other errors, and none, stay as they are.
func ExplainStore(cfg Config, err error) error {
	if err == nil {
		return nil
	}
	at := cfg.Endpoint
	if at == "" {
		at = "DynamoDB"
	}
	var (
		api       smithy.APIError
		op        *net.OpError
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
	case errors.As(err, &op):
		return fmt.Errorf("dynamo: %s cannot be reached: %w", at, op.Err)
	}
	return err
}
