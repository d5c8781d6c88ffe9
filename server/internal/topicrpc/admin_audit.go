package topicrpc

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/topic"
)

// Pages of records.
const (
	defaultPage = 100
	maxPage     = 1000
)

// ListAudit implements TopicAdminService.
func (s *AdminServer) ListAudit(
	ctx context.Context, req *topicv1.ListAuditRequest) (*topicv1.ListAuditResponse, error,
) {
	if _, err := s.topics(ctx); err != nil {
		return nil, err
	}
	size := int(min(req.GetPageSize(), maxPage))
	if size == 0 {
		size = defaultPage
	}
	f := audit.Filter{
		Actor: req.GetActor(), Name: req.GetCall(), After: timeOf(req.GetAfter()), Before: timeOf(req.GetBefore()),
		Accept: func(c audit.Call) bool { return about(c, req.GetTopic()) },
	}
	list, next, err := s.cfg.Audit.List(ctx, f, size, req.GetPageToken())
	if errors.Is(err, audit.ErrInvalid) {
		return nil, api.Invalid("page_token", "it is none of this list")
	}
	if err != nil {
		return nil, err
	}
	res := &topicv1.ListAuditResponse{NextPageToken: next}
	for _, c := range list {
		r := &topicv1.AuditRecord{
			Id: c.ID, BeganAt: timestamppb.New(c.Began), Actor: c.Actor, Call: c.Name, Request: c.Request, Code: c.Code,
			Result: c.Result,
		}
		if !c.Ended.IsZero() {
			r.EndedAt = timestamppb.New(c.Ended)
		}
		res.Records = append(res.Records, r)
	}
	return res, nil
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// about reports whether a call is about a topic, or about any if that is empty. The record
// of a call has its request as JSON, in which a topic's name needs no escapes; that of a job
// has the name.
func about(c audit.Call, name string) bool {
	if c.Actor == topic.Actor {
		return name == "" || c.Request == name
	}
	if !isCall(c.Name) {
		return false
	}
	return name == "" || strings.Contains(strings.ReplaceAll(c.Request, `": "`, `":"`), `"topic":"`+name+`"`)
}

// isCall reports whether a call is one of a service of topics.
func isCall(name string) (found bool) {
	protoregistry.GlobalFiles.RangeFilesByPackage("parley.topic.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			found = found || f.Services().Get(i).Methods().ByName(protoreflect.Name(name)) != nil
		}
		return !found
	})
	return found
}
