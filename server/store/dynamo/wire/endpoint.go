package wire

import (
	"context"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	smithyendpoints "github.com/aws/smithy-go/endpoints"
)

// endpoints remembers where the last request went. The SDK's own resolver works through
// its rules for each request, and compiles regular expressions for a region that it
// does not list, which was a third of what a server on DynamoDB Local allocates. The
// result depends on settings, and on the account that the credentials are of; on tables
// only where they are named by ARN, which ours never are.
//
// Concurrency: requests of many goroutines share it.
type endpoints struct {
	next dynamodb.EndpointResolverV2
	last atomic.Pointer[resolved]
}

type resolved struct {
	of       endpointKey
	endpoint smithyendpoints.Endpoint // read only from here on
}

// endpointKey is what an endpoint depends on.
type endpointKey struct {
	region, endpoint, account, mode string
	dualStack, fips, search         bool
}

// ResolveEndpoint implements dynamodb.EndpointResolverV2.
func (e *endpoints) ResolveEndpoint(
	ctx context.Context, p dynamodb.EndpointParameters,
) (smithyendpoints.Endpoint, error) {
	of := endpointKey{
		region: aws.ToString(p.Region), endpoint: aws.ToString(p.Endpoint), account: aws.ToString(p.AccountId),
		mode:      aws.ToString(p.AccountIdEndpointMode),
		dualStack: aws.ToBool(p.UseDualStack), fips: aws.ToBool(p.UseFIPS), search: aws.ToBool(p.IsSearchOperation),
	}
	if r := e.last.Load(); r != nil && r.of == of {
		return r.endpoint, nil
	}
	endpoint, err := e.next.ResolveEndpoint(ctx, p)
	if err == nil {
		e.last.Store(&resolved{of, endpoint})
	}
	return endpoint, err
}
