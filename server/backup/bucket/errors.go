package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// reasons are what S3's codes mean for an operator.
var reasons = map[string]string{
	"NoSuchBucket":                       "there is no such bucket",
	"AccessDenied":                       "access is denied: the credentials lack a permission",
	"InvalidAccessKeyId":                 "the credentials are wrong",
	"SignatureDoesNotMatch":              "the credentials are wrong",
	"InvalidToken":                       "the credentials are wrong",
	"ExpiredToken":                       "the credentials have expired",
	"ExpiredTokenException":              "the credentials have expired",
	"TokenRefreshRequired":               "the credentials have expired",
	"RequestExpired":                     "the clock of this machine is wrong",
	"RequestTimeTooSkewed":               "the clock of this machine is wrong",
	"PermanentRedirect":                  "the bucket is in another region: set AWS_REGION",
	"AuthorizationHeaderMalformed":       "the bucket is in another region: set AWS_REGION",
	"IllegalLocationConstraintException": "the bucket is in another region: set AWS_REGION",
	"BadDigest":                          "it arrived with another content than it was sent with",
	"InvalidDigest":                      "it arrived with another content than it was sent with",
	"XAmzContentSHA256Mismatch":          "it arrived with another content than it was sent with",
}

// explain is an error of the SDK in one line, without its layers. It has neither credentials nor headers of the
// request: of what the server says it has the code and the message.
func (b *Bucket) explain(ctx context.Context, key string, err error) error {
	if err == nil {
		return nil
	}
	at := b.URL(key)
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", at, cause)
	}
	var said smithy.APIError
	var response *smithyhttp.ResponseError
	var dialed *url.Error
	switch {
	case errors.As(err, &said):
		return answered(at, said)
	case errors.As(err, &dialed):
		return fmt.Errorf("%s: the server cannot be reached: %w", at, dialed.Err)
	case errors.As(err, &response):
		return fmt.Errorf("%s: the server answers %d, and nothing that S3 says", at, response.HTTPStatusCode())
	case strings.Contains(err.Error(), "get credentials"):
		return errors.New("s3: no credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile (AWS_PROFILE) " +
			"or a role of this machine is needed")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return fmt.Errorf("%s: the connection was cut off: %w", at, err)
	}
	return fmt.Errorf("%s: %w", at, err)
}

func answered(at string, said smithy.APIError) error {
	code := said.ErrorCode()
	if code == "NoSuchKey" || code == "NotFound" {
		return fmt.Errorf("%s: %w", at, fs.ErrNotExist)
	}
	reason, ok := reasons[code]
	if !ok {
		reason = "the server refuses"
	}
	return fmt.Errorf("%s: %s (%.50s: %.300q)", at, reason, code, said.ErrorMessage())
}
