package adminapi_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// The audit is read page by page and exported as lines, from where another export ended; a
// token is of its filter alone, and an export is itself on record.
func TestAuditIsExported(t *testing.T) {
	r := opstest.New(t, nil)
	r.Identity.SignIn("alice", "ses_1")
	sessions := adminv1connect.NewSessionAdminServiceClient(as(t, r, auth.Moderator), "http://"+r.Addr)
	const calls = 300 // more than a response has
	for range calls {
		_, err := sessions.EndAllSessions(t.Context(),
			&adminv1.EndAllSessionsRequest{UserId: "alice", Reason: "a <test>", Execute: true})
		testkit.Must(t, err)
	}
	c := adminv1connect.NewAuditServiceClient(as(t, r, auth.Admin), "http://"+r.Addr)
	filter := &adminv1.AuditFilter{Target: "user/alice"}
	export := func(
		ctx context.Context, filter *adminv1.AuditFilter, token string, limit int,
	) (ids []string, next string, err error) {
		s, err := c.ExportAudit(ctx,
			&adminv1.ExportAuditRequest{Filter: filter, Reason: "a yearly check", PageToken: token})
		for n := 0; err == nil && n < limit && s.Receive(); n++ {
			next = s.Msg().GetPageToken()
			for _, l := range s.Msg().GetLines() {
				var one struct{ ID, At, Kind, Actor, Action, Target, Request, EndedAt, Outcome string }
				if err := json.Unmarshal([]byte(l), &one); err != nil || strings.Contains(l, "\n") || one.Kind != "call" ||
					one.Actor != "ada" || one.Action != "EndAllSessions" || one.Target != "user/alice" || one.Outcome != "ok" ||
					one.EndedAt < one.At || !strings.Contains(one.Request, "a <test>") {
					t.Fatalf("%s: %v", l, err)
				}
				ids = append(ids, one.ID)
			}
		}
		if err == nil {
			err = s.Err()
		}
		return ids, next, err
	}
	all, next, err := export(t.Context(), filter, "", calls)
	testkit.Must(t, err)
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != calls || next != "" {
		t.Fatalf("%d lines, token %q", len(all), next)
	}
	ctx, cancel := context.WithCancel(t.Context())
	first, next, err := export(ctx, filter, "", 1)
	cancel() // the caller's line breaks
	testkit.Must(t, err)
	rest, _, err := export(t.Context(), filter, next, calls)
	testkit.Must(t, err)
	if !slices.Equal(append(first, rest...), all) || len(first) == 0 || len(rest) == 0 {
		t.Errorf("%d and %d lines of two exports", len(first), len(rest))
	}
	_, _, err = export(t.Context(), &adminv1.AuditFilter{Target: "user/bob"}, next, 1)
	wantReason(t, "another filter", err, "INVALID_PAGE_TOKEN")
	if got := records(t, r, &adminv1.AuditFilter{Action: "ExportAudit"}); len(got) < 3 ||
		!strings.Contains(got[0].GetRequest(), "a yearly check") {
		t.Errorf("%v", got)
	}

	var pages []string
	for token := ""; ; {
		res, err := c.ListAudit(t.Context(), &adminv1.ListAuditRequest{Filter: filter, PageSize: 77, PageToken: token})
		testkit.Must(t, err)
		for _, one := range res.GetRecords() {
			pages = append(pages, one.GetId())
		}
		if token = res.GetNextPageToken(); token == "" {
			break
		}
	}
	if !slices.Equal(pages, all) {
		t.Errorf("%d records on pages, %d lines", len(pages), len(all))
	}
}
