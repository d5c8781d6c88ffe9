package adminapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"connectrpc.com/connect"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/workers/ops/pagetoken"
)

type auditService struct{ log *audit.Log }

var _ adminv1connect.AuditServiceHandler = (*auditService)(nil)

var kinds = map[adminv1.AuditKind]audit.Kind{
	adminv1.AuditKind_AUDIT_KIND_UNSPECIFIED: audit.All, adminv1.AuditKind_AUDIT_KIND_CALL: audit.Calls,
	adminv1.AuditKind_AUDIT_KIND_EVENT: audit.Events,
}

func filterOf(f *adminv1.AuditFilter) audit.Filter {
	return audit.Filter{Kind: kinds[f.GetKind()], After: timeOf(f.GetAfter()), Before: timeOf(f.GetBefore()),
		Actor: f.GetActor(), Target: f.GetTarget(), Name: f.GetAction()}
}

// page reads a page, whose token belongs to its filter alone.
func (s *auditService) page(
	ctx context.Context, filter *adminv1.AuditFilter, size int, token string,
) (calls []audit.Call, next string, err error) {
	at, err := pagetoken.Decode(token, filter)
	if err != nil {
		return nil, "", err
	}
	if calls, next, err = s.log.List(ctx, filterOf(filter), size, string(at)); err != nil || next == "" {
		return calls, "", err
	}
	return calls, pagetoken.Encode([]byte(next), filter), nil
}

// ListAudit implements adminv1connect.AuditServiceHandler.
func (s *auditService) ListAudit(
	ctx context.Context, req *adminv1.ListAuditRequest,
) (*adminv1.ListAuditResponse, error) {
	calls, next, err := s.page(ctx, req.GetFilter(), cmp.Or(int(req.GetPageSize()), defaultPage), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListAuditResponse{NextPageToken: next}
	for _, c := range calls {
		out.Records = append(out.Records, recordTo(c))
	}
	return out, nil
}

func recordTo(c audit.Call) *adminv1.AuditRecord {
	out := &adminv1.AuditRecord{
		Id: c.ID, At: timestamp(c.Began), Kind: adminv1.AuditKind_AUDIT_KIND_CALL, Actor: c.Actor, Action: c.Name,
		Target: c.Target, Request: c.Request, EndedAt: timestamp(c.Ended), Outcome: c.Code, Result: c.Result,
	}
	if c.Event {
		out.Kind, out.EndedAt = adminv1.AuditKind_AUDIT_KIND_EVENT, nil
	}
	return out
}

// exportPage is how many records a response of an export has: the largest fill 4 MiB.
const exportPage = 250

// ExportAudit implements adminv1connect.AuditServiceHandler.
func (s *auditService) ExportAudit(
	ctx context.Context, req *adminv1.ExportAuditRequest, stream *connect.ServerStream[adminv1.ExportAuditResponse],
) error {
	for token := req.GetPageToken(); ; {
		calls, next, err := s.page(ctx, req.GetFilter(), exportPage, token)
		if err != nil {
			return err
		}
		out := &adminv1.ExportAuditResponse{PageToken: next}
		for _, c := range calls {
			line, err := lineOf(c)
			if err != nil {
				return err
			}
			out.Lines = append(out.Lines, line)
		}
		if err := stream.Send(out); err != nil {
			return err
		}
		if token = next; token == "" {
			return nil
		}
	}
}

// lineTime is the form of times in lines: their order as texts is that of time.
const lineTime = "2006-01-02T15:04:05.000Z07:00"

// line is a record as JSON; names and their order do not change.
type line struct {
	ID      string `json:"id"`
	At      string `json:"at"`
	Kind    string `json:"kind"` // "call" or "event"
	Actor   string `json:"actor"`
	Action  string `json:"action"`
	Target  string `json:"target,omitempty"`
	Request string `json:"request,omitempty"` // JSON, unless it was too long
	EndedAt string `json:"endedAt,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	Result  string `json:"result,omitempty"`
}

func lineOf(c audit.Call) (string, error) {
	l := line{ID: c.ID, At: c.Began.UTC().Format(lineTime), Kind: "call", Actor: c.Actor, Action: c.Name,
		Target: c.Target, Request: c.Request, Outcome: c.Code, Result: c.Result}
	switch {
	case c.Event:
		l.Kind = "event"
	case !c.Ended.IsZero():
		l.EndedAt = c.Ended.UTC().Format(lineTime)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(l); err != nil {
		return "", fmt.Errorf("write record: %w", err)
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}
