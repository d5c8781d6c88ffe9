// Package parkedkeys serves operators the keys that consumer groups have parked: the RPCs of
// parley.ops.v1's ParkedKeyService over package parked.
//
// It owns what is between the wire and the rows. It does not own authentication and the
// audit (package ops serves it in its own chain), nor the release of a key: that follows
// from the actions on its dead letters (package deadletter).
//
// Concurrency: a Service is safe for concurrent use.
package parkedkeys

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume/parked"
	"github.com/parley-chat/parley/workers/ops/pagetoken"
)

// defaultPage is the size of a page of which none is asked for.
const defaultPage = 100

// Service has the handlers.
type Service struct {
	store store.Store
	clock func() time.Time
}

var _ opsv1connect.ParkedKeyServiceHandler = (*Service)(nil)

// New makes a Service.
func New(st store.Store, clock func() time.Time) *Service { return &Service{st, clock} }

// Handler is the service, for package ops.
func (s *Service) Handler(o ...connect.HandlerOption) (string, http.Handler) {
	return opsv1connect.NewParkedKeyServiceHandler(s, o...)
}

// ListParkedKeys implements opsv1connect.ParkedKeyServiceHandler.
func (s *Service) ListParkedKeys(
	ctx context.Context, req *opsv1.ListParkedKeysRequest,
) (*opsv1.ListParkedKeysResponse, error) {
	query := &opsv1.ListParkedKeysRequest{Group: req.GetGroup(), Topic: req.GetTopic(), Key: req.GetKey()}
	after, err := pagetoken.Decode(req.GetPageToken(), query)
	if err != nil {
		return nil, err
	}
	of := parked.Select{Group: req.GetGroup(), Topic: parked.Declared(req.GetTopic()), Key: req.GetKey()}
	rows, next, err := parked.Page(ctx, s.store, of, string(after), cmp.Or(int(req.GetPageSize()), defaultPage))
	if err != nil {
		return nil, err
	}
	res, now := &opsv1.ListParkedKeysResponse{}, s.clock().UnixMilli()
	for i := range rows {
		res.Keys = append(res.Keys, keyTo(&rows[i], now))
	}
	if next != "" {
		res.NextPageToken = pagetoken.Encode([]byte(next), query)
	}
	return res, nil
}

func keyTo(p *table.Parked, now int64) *opsv1.ParkedKey {
	k := &opsv1.ParkedKey{
		Group: p.Group, Topic: p.Topic, Key: valid(string(p.Key)), FailedRecord: p.Failed, Reason: valid(p.Reason),
		FailureClass: opsv1.FailureClass(opsv1.FailureClass_value["FAILURE_CLASS_"+strings.ToUpper(p.Class)]),
		Attempts:     int32(p.Attempts), Since: millis(p.Since), Partition: int32(p.Partition), Records: p.Records,
		Bytes: p.Bytes,
	}
	if p.HoldUntil > now {
		k.HeldUntil = millis(p.HoldUntil)
	}
	return k
}

// millis is a time in unix ms.
func millis(at int64) *timestamppb.Timestamp { return timestamppb.New(time.UnixMilli(at)) }

// valid makes a text that others wrote to Kafka valid for protobuf.
func valid(s string) string { return strings.ToValidUTF8(s, "?") }
