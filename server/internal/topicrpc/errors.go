package topicrpc

import (
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/rpc"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// ErrMode says that this mode of the server has no topics.
var ErrMode = errors.New("topicrpc: not in this mode")

// errDraining says that the server is going down.
var errDraining = errors.New("topicrpc: draining")

// row is what a client sees of a reason.
type row struct {
	code  connect.Code
	retry time.Duration // when to retry; 0: a retry does not help
}

// table is the table of errors of topics.
var table = map[refusal.Reason]row{
	refusal.TopicNotFound:         {code: connect.CodeNotFound},
	refusal.TopicForbidden:        {code: connect.CodePermissionDenied},
	refusal.TopicReadOnly:         {code: connect.CodeFailedPrecondition},
	refusal.LastAdmin:             {code: connect.CodeFailedPrecondition},
	refusal.TopicExists:           {code: connect.CodeAborted},
	refusal.NoSubscriptions:       {code: connect.CodeFailedPrecondition},
	refusal.TopicFull:             {code: connect.CodeResourceExhausted},
	refusal.StorageLow:            {code: connect.CodeResourceExhausted, retry: 30 * time.Second},
	refusal.NotActive:             {code: connect.CodeFailedPrecondition},
	refusal.SubscriptionGone:      {code: connect.CodeFailedPrecondition},
	refusal.SubscriptionNotFound:  {code: connect.CodeNotFound},
	refusal.InvalidTransition:     {code: connect.CodeFailedPrecondition},
	refusal.MemberExists:          {code: connect.CodeAlreadyExists},
	refusal.GroupPushed:           {code: connect.CodeFailedPrecondition},
	refusal.SessionGone:           {code: connect.CodeNotFound},
	refusal.ProducerNumberTooOld:  {code: connect.CodeFailedPrecondition},
	refusal.ProducerNumberReused:  {code: connect.CodeFailedPrecondition},
	refusal.DeduplicationIDReused: {code: connect.CodeFailedPrecondition},
	refusal.MessageNotFound:       {code: connect.CodeNotFound},
	refusal.PositionOutOfRange:    {code: connect.CodeOutOfRange},
	refusal.TooLarge:              {code: connect.CodeResourceExhausted},
	refusal.InvalidFilter:         {code: connect.CodeInvalidArgument},
	refusal.InvalidArgument:       {code: connect.CodeInvalidArgument},
	refusal.TooMany:               {code: connect.CodeResourceExhausted},
	refusal.JobRunning:            {code: connect.CodeAborted},
	refusal.Overloaded:            {code: connect.CodeResourceExhausted, retry: time.Second},
	refusal.NoOwner:               {code: connect.CodeUnavailable, retry: time.Second},
	refusal.SchemaNotFound:        {code: connect.CodeNotFound},
	refusal.SchemaIncompatible:    {code: connect.CodeFailedPrecondition},
	refusal.SchemaMismatch:        {code: connect.CodeInvalidArgument},
}

// notInThisMode is the refusal of all calls where nothing serves topics.
var notInThisMode = rpc.Refusal{Code: connect.CodeUnimplemented, Reason: "NOT_IN_THIS_MODE",
	Text: "topics are served by a server that is everything in one process, or has brokers of Kafka"}

// Reasons are all refusals of calls for topics and all ends of their streams, for the
// documents: a row for each text of a reason. A text is empty where it depends on the request.
func Reasons() []rpc.Refusal {
	all := []rpc.Refusal{notInThisMode}
	for reason, r := range table {
		all = append(all, rpc.Refusal{Code: r.code, Reason: string(reason), Retry: r.retry})
	}
	for reason := range endings {
		all = append(all, *goneWith(reason).refusal())
	}
	return all
}

// explain says what clients see of the errors of topics.
func explain(err error) *rpc.Refusal {
	var refused *refusal.Error
	var gone *goneError
	switch {
	case errors.Is(err, ErrMode):
		refused := notInThisMode
		return &refused
	case errors.Is(err, topic.ErrFenced), errors.Is(err, commitlog.ErrFenced):
		return explain(refusal.New(refusal.NoOwner, "the topic has just passed to another server"))
	case errors.Is(err, errDraining):
		return goneWith("DRAINING").refusal()
	case errors.As(err, &gone):
		return gone.refusal()
	case errors.As(err, &refused):
		if r, ok := table[refused.Reason]; ok {
			return &rpc.Refusal{Code: r.code, Reason: string(refused.Reason),
				Text: strings.TrimPrefix(refused.Error(), "topic: "), Retry: r.retry}
		}
	}
	return nil
}

// Gone is the end of a stream for a reason, as its last message has it.
func Gone(reason string) error { return goneWith(reason) }

// goneError is why a stream ended, as its last message said.
type goneError struct{ reason string }

func goneWith(reason string) *goneError { return &goneError{reason} }

// Error implements error.
func (e *goneError) Error() string { return "topicrpc: the session has ended: " + e.reason }

// endings are the reasons for which streams end.
var endings = map[string]rpc.Refusal{
	"SUBSCRIPTION_GONE": {Code: connect.CodeFailedPrecondition, Text: "the subscription has ended"},
	"TOPIC_FORBIDDEN":   {Code: connect.CodePermissionDenied, Text: "the caller has lost the right to consume"},
	"DRAINING":          {Code: connect.CodeUnavailable, Text: "the session has ended: attach again", Retry: time.Second},
	"SLOW":              {Code: connect.CodeUnavailable, Text: "the stream was not read fast enough", Retry: time.Second},
	"REPLACED":          {Code: connect.CodeAborted, Text: "another session took this one's place"},
	"TOPIC_DELETED":     {Code: connect.CodeNotFound, Text: "the topic was deleted"},
	"TOKEN_EXPIRED":     {Code: connect.CodeUnauthenticated, Text: "the access token has expired"},
}

func (e *goneError) refusal() *rpc.Refusal {
	out, ok := endings[e.reason]
	if !ok {
		out = rpc.Refusal{Code: connect.CodeUnavailable, Text: "the session has ended", Retry: time.Second}
	}
	out.Reason = e.reason
	return &out
}
