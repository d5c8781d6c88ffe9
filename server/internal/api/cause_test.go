package api_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// causes are those of a chat's events, in their order.
func (s *server) causes(id string) (list []event.Cause) {
	s.Helper()
	page, err := s.store.Query(s.Context(), store.Query{Table: store.Events, PK: id, Consistency: store.Strong})
	s.must(err)
	for _, row := range page.Rows {
		stored, err := table.EventFrom(row)
		s.must(err)
		e, err := event.Unmarshal(stored.Type, stored.Payload)
		s.must(err)
		md := e.GetMetadata()
		list = append(list, event.Cause{Actor: md.GetActorId(), Trace: md.GetTraceId(),
			Correlation: md.GetCorrelationId(), Causation: md.GetCausationId()})
	}
	return list
}

// Both events of a direct chat, and all of a group's creation, have the trace of the request and
// one correlation. A request without a trace, or with one that is none, gets a W3C trace-id.
func TestCauseOfARequest(t *testing.T) {
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	traces := map[string]bool{}
	for _, traceparent := range []string{"", "00-" + trace + "-00f067aa0ba902b7-01", "forged"} {
		s := newServer(t)
		for _, req := range []*chatv1.CreateChatRequest{
			{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: []string{"bob"}, RequestId: "r1"},
			{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: []string{"bob", "cid"}},
		} {
			ctx, info := connect.NewClientContext(t.Context())
			if traceparent != "" {
				info.RequestHeader().Set("Traceparent", traceparent)
			}
			res, err := s.clients(http.DefaultClient, "ann").chat.CreateChat(ctx, req)
			s.must(err)
			list := s.causes(res.GetOverview().GetChat().GetChatId())
			if len(list) != 1+len(req.GetMemberIds()) {
				t.Fatalf("%d events of %v", len(list), req)
			}
			for _, c := range list {
				if c != list[0] || c.Correlation == "" || req.GetRequestId() != "" && c.Causation != req.GetRequestId() {
					t.Errorf("%q: %+v, want one cause of %v", traceparent, list, req)
				}
			}
			got := list[0].Trace
			if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(got) || strings.Contains(traceparent, trace) != (got == trace) {
				t.Errorf("%q: trace %q", traceparent, got)
			}
			traces[got] = true
		}
	}
	if len(traces) != 5 { // four requests without one, and the client's
		t.Errorf("the traces are %v", traces)
	}
}

// L-056: a creation whose second phase cannot be completed in the request is logged by it.
func TestIncompleteCreationIsLogged(t *testing.T) {
	s := newServer(t)
	s.group("bob")
	if log := s.log.String(); strings.Contains(log, "chat_creation_incomplete") {
		t.Errorf("a complete creation is logged as incomplete: %s", log)
	}
	s.tally().only(1) // the first phase
	id := s.group("bob", "cid")
	line := regexp.MustCompile(`msg=chat_creation_incomplete chat_id=` + id + ` error=.*injected`)
	if log := s.log.String(); !line.MatchString(log) {
		t.Errorf("an incomplete creation of %s is logged as %q", id, log)
	}
}
