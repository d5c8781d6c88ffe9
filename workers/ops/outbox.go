package ops

import (
	"cmp"
	"context"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/failedrows"
)

// ListFailedOutboxRows implements opsv1connect.OpsServiceHandler.
func (s *Service) ListFailedOutboxRows(
	ctx context.Context, req *opsv1.ListFailedOutboxRowsRequest,
) (*opsv1.ListFailedOutboxRowsResponse, error) {
	size := cmp.Or(min(int(req.GetPageSize()), failedrows.MaxRows), defaultPage)
	rows, err := failedrows.List(ctx, s.cfg.Store, req.GetPageToken(), size)
	if err != nil {
		return nil, err
	}
	res := &opsv1.ListFailedOutboxRowsResponse{}
	for _, r := range rows {
		res.Rows = append(res.Rows, failedRow(r))
	}
	if len(rows) == size {
		res.NextPageToken = rows[size-1].ID
	}
	return res, nil
}

// RepairFailedOutboxRow implements opsv1connect.OpsServiceHandler.
func (s *Service) RepairFailedOutboxRow(
	ctx context.Context, req *opsv1.RepairFailedOutboxRowRequest,
) (*opsv1.RepairFailedOutboxRowResponse, error) {
	row, rows, err := failedrows.Repair(ctx, s.cfg.Store, req.GetRow(), req.GetExecute())
	if err != nil {
		return nil, err
	}
	res := &opsv1.RepairFailedOutboxRowResponse{Row: failedRow(row)}
	for _, o := range rows {
		res.Repaired = append(res.Repaired, rowTo(o))
	}
	return res, nil
}

// DropFailedOutboxRow implements opsv1connect.OpsServiceHandler.
func (s *Service) DropFailedOutboxRow(
	ctx context.Context, req *opsv1.DropFailedOutboxRowRequest,
) (*opsv1.DropFailedOutboxRowResponse, error) {
	row, err := failedrows.Drop(ctx, s.cfg.Store, req.GetRow(), req.GetExecute())
	if err != nil {
		return nil, err
	}
	return &opsv1.DropFailedOutboxRowResponse{Row: failedRow(row)}, nil
}

func failedRow(r failedrows.Row) *opsv1.FailedOutboxRow {
	return &opsv1.FailedOutboxRow{
		Row: r.ID, ChatId: r.ChatID, FirstVersion: r.FirstVersion, Count: r.Count, Replay: r.Replay, Attempts: r.Attempts,
		CreatedAt: timestamp(r.CreatedAt),
		LastError: truncate(r.LastError, maxReason),
	}
}

func rowTo(o table.Outbox) *opsv1.FailedOutboxRow {
	return &opsv1.FailedOutboxRow{ChatId: o.AggregateID, FirstVersion: o.FirstVersion, Count: o.Count, Replay: o.Replay}
}
