package topicrpc

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic"
)

// ownSlots are slots that this process has.
type ownSlots struct{}

func (ownSlots) Slots() int                               { return 16 }
func (ownSlots) Enter(int) (*topic.Service, func(), bool) { return nil, func() {}, true }
func (ownSlots) Owner(int) string                         { return "" }
func (ownSlots) Refresh(context.Context) error            { return nil }

// A publish that the router repeats itself, because it does not know what became of its first try, is
// not called a repetition: the client has made one request. What a client repeats is.
func TestRepetitionsOfTheRouterAreItsOwn(t *testing.T) {
	t.Parallel()
	for _, ambiguous := range []int{0, 1, 3} {
		for _, remote := range []bool{false, true} {
			tries := 0
			call := NewRouter(RouterConfig{Slots: ownSlots{}}).WrapUnary(
				func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
					if tries++; tries <= ambiguous {
						return nil, fmt.Errorf("%w: the owner does not answer", store.ErrAmbiguous)
					}
					m := &topicv1.PublishResponse{Results: []*topicv1.PublishResult{{MessageId: "0-7", Position: 7, Replayed: true},
						{MessageId: "0-8", Position: 8, Replayed: true}}}
					if !remote {
						return connect.NewResponse(m), nil
					}
					wire, err := proto.Marshal(m)
					return connect.NewResponse(&encoded{wire: wire, kind: m.ProtoReflect().Type()}), err
				})
			req := &topicv1.PublishRequest{Topic: "t", Producer: &topicv1.Producer{Id: "p", Number: 1}}
			res, err := call(t.Context(), connect.NewRequest(req))
			testkit.Must(t, err)
			testkit.Equal(t, "tries", tries, ambiguous+1)
			b, err := proto.Marshal(res.Any().(proto.Message))
			testkit.Must(t, err)
			got := &topicv1.PublishResponse{}
			testkit.Must(t, proto.Unmarshal(b, got))
			testkit.Equal(t, "results", len(got.GetResults()), 2)
			for i, r := range got.GetResults() {
				testkit.Equal(t, "position", r.GetPosition(), int64(7+i))
				testkit.Equal(t, fmt.Sprintf("replayed after %d tries of the router", tries), r.GetReplayed(), ambiguous == 0)
			}
			tries, req.Producer = 0, nil // without a number it is not repeated
			if _, err = call(t.Context(), connect.NewRequest(req)); errors.Is(err, store.ErrAmbiguous) != (ambiguous > 0) {
				t.Errorf("without a producer: %v", err)
			}
		}
	}
}
