package wire

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	smithyendpoints "github.com/aws/smithy-go/endpoints"
)

// rules counts how often they are asked, and fails on demand.
type rules struct {
	asked int
	err   error
	real  dynamodb.EndpointResolverV2
}

func (r *rules) ResolveEndpoint(ctx context.Context, p dynamodb.EndpointParameters) (smithyendpoints.Endpoint, error) {
	r.asked++
	if r.err != nil {
		return smithyendpoints.Endpoint{}, r.err
	}
	return r.real.ResolveEndpoint(ctx, p)
}

// Requests go where the SDK's rules say, whatever was asked before, and the rules are asked
// once for requests that go to one place.
func TestEndpointsAreRemembered(t *testing.T) {
	real := dynamodb.NewDefaultEndpointResolverV2()
	r := &rules{real: real}
	e := &endpoints{next: r}
	params := func(change func(*dynamodb.EndpointParameters)) dynamodb.EndpointParameters {
		p := dynamodb.EndpointParameters{
			Region: aws.String("eu-west-1"), UseDualStack: aws.Bool(false), UseFIPS: aws.Bool(false),
			AccountIdEndpointMode: aws.String("preferred"), ResourceArn: aws.String("parley_messages"),
		}
		if change != nil {
			change(&p)
		}
		return p
	}
	seen := map[url.URL]bool{}
	asked := 0
	for _, change := range []func(*dynamodb.EndpointParameters){
		nil,
		func(p *dynamodb.EndpointParameters) { p.Region = aws.String("us-east-2") },
		func(p *dynamodb.EndpointParameters) { p.AccountId = aws.String("123456789012") },
		func(p *dynamodb.EndpointParameters) { p.AccountId = aws.String("210987654321") },
		func(p *dynamodb.EndpointParameters) { p.UseDualStack = aws.Bool(true) },
		func(p *dynamodb.EndpointParameters) { p.UseFIPS = aws.Bool(true) },
		func(p *dynamodb.EndpointParameters) { p.Endpoint = aws.String("http://127.0.0.1:8000") },
	} {
		p := params(change)
		want, err := real.ResolveEndpoint(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		asked++
		for _, table := range []string{"parley_messages", "parley_events", "parley_messages"} {
			p.ResourceArn = aws.String(table)
			got, err := e.ResolveEndpoint(t.Context(), p)
			if err != nil || got.URI != want.URI {
				t.Errorf("goes to %v, not %v (%v)", got.URI, want.URI, err)
			}
			if r.asked != asked {
				t.Errorf("the rules were asked %d times, not %d", r.asked, asked)
			}
		}
		seen[want.URI] = true
	}
	if len(seen) != 7 {
		t.Errorf("%d places in all: %v", len(seen), seen)
	}
	// What failed is not remembered.
	r.err = errors.New("no such region")
	if _, err := e.ResolveEndpoint(t.Context(), params(nil)); !errors.Is(err, r.err) {
		t.Errorf("got %v", err)
	}
	r.err = nil
	if _, err := e.ResolveEndpoint(t.Context(), params(nil)); err != nil {
		t.Error(err)
	}
}

// BenchmarkEndpoints is what one request pays for knowing where to go.
func BenchmarkEndpoints(b *testing.B) {
	for region, endpoint := range map[string]*string{"eu-west-1": nil, "local": aws.String("http://127.0.0.1:8000")} {
		p := dynamodb.EndpointParameters{Region: aws.String(region), Endpoint: endpoint,
			AccountIdEndpointMode: aws.String("preferred"), ResourceArn: aws.String("parley_messages")}
		for how, e := range map[string]dynamodb.EndpointResolverV2{
			"rules":      dynamodb.NewDefaultEndpointResolverV2(),
			"remembered": &endpoints{next: dynamodb.NewDefaultEndpointResolverV2()},
		} {
			b.Run(region+"/"+how, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := e.ResolveEndpoint(b.Context(), p); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
