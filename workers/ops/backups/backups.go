// Package backups serves operators the files of a data directory as they are at one moment:
// the BackupService of parley.ops.v1.
//
// It owns how long a snapshot exists. Package ops serves it in its own chain, which admits
// operators, records calls and maps errors.
//
// Concurrency: a Service is safe for concurrent use.
package backups

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
)

// aliveEvery is how often a response says that the snapshot is still there.
const aliveEvery = 10 * time.Second

// Service has the handler.
type Service struct {
	// Take makes a snapshot in a directory, which is there until release is called. Errors: those
	// of package backup.
	Take func(context.Context) (dir string, release func(), err error)
}

var _ opsv1connect.BackupServiceHandler = (*Service)(nil)

// Handler is the service, for package ops.
func (s *Service) Handler(o ...connect.HandlerOption) (string, http.Handler) {
	return opsv1connect.NewBackupServiceHandler(s, o...)
}

// TakeSnapshot implements opsv1connect.BackupServiceHandler.
func (s *Service) TakeSnapshot(
	ctx context.Context, _ *opsv1.TakeSnapshotRequest, stream *connect.ServerStream[opsv1.TakeSnapshotResponse],
) error {
	dir, release, err := s.Take(ctx)
	if err != nil {
		return err
	}
	defer release()
	res := &opsv1.TakeSnapshotResponse{Path: dir, TakenAt: timestamppb.Now()}
	t := time.NewTicker(aliveEvery)
	defer t.Stop()
	for {
		if err := stream.Send(res); err != nil {
			return err
		}
		select {
		case <-ctx.Done(): // the caller has read the files, or has gone
			return ctx.Err()
		case <-t.C:
		}
	}
}
