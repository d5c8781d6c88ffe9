package ops

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/workers/migrate"
)

var phases = map[versions.Phase]opsv1.TopicMigrationPhase{
	versions.Planned:  opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_PLANNED,
	versions.Created:  opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_CREATED,
	versions.Frozen:   opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_FROZEN,
	versions.Quiet:    opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_QUIET,
	versions.Drained:  opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_DRAINED,
	versions.Switched: opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_SWITCHED,
}

var versionStatuses = map[versions.Status]opsv1.TopicVersionStatus{
	versions.Next:      opsv1.TopicVersionStatus_TOPIC_VERSION_STATUS_NEXT,
	versions.Current:   opsv1.TopicVersionStatus_TOPIC_VERSION_STATUS_CURRENT,
	versions.Past:      opsv1.TopicVersionStatus_TOPIC_VERSION_STATUS_PAST,
	versions.Retired:   opsv1.TopicVersionStatus_TOPIC_VERSION_STATUS_RETIRED,
	versions.Abandoned: opsv1.TopicVersionStatus_TOPIC_VERSION_STATUS_ABANDONED,
}

// MigrateTopic implements opsv1connect.OpsServiceHandler.
func (s *Service) MigrateTopic(
	ctx context.Context, req *opsv1.MigrateTopicRequest, stream *connect.ServerStream[opsv1.MigrateTopicResponse],
) error {
	r := migrate.Request{
		Topic: req.GetTopic(), Partitions: req.GetPartitions(), By: actor(ctx), Ignore: req.GetIgnoreGroups(),
		MaxFreeze: req.GetMaxFreeze().AsDuration(),
	}
	if !req.GetExecute() {
		plan, err := s.cfg.Migrator.Status(ctx, r)
		if err != nil {
			return err
		}
		return stream.Send(progressTo(plan))
	}
	var last migrate.Progress
	var lastSent time.Time
	return s.cfg.Migrator.Run(ctx, r, func(p migrate.Progress) error {
		if now := s.cfg.Clock(); p.Phase != last.Phase || len(p.Waiting) != len(last.Waiting) || p.Done ||
			now.Sub(lastSent) >= progressEvery {
			last, lastSent = p, now
			return stream.Send(progressTo(p))
		}
		return nil
	})
}

// maxWords bounds the description of one thing that a migration waits for, in bytes.
const maxWords = 1_000

func progressTo(p migrate.Progress) *opsv1.MigrateTopicResponse {
	out := &opsv1.MigrateTopicResponse{
		Phase: phases[p.Phase], From: p.From, To: p.To, Partitions: p.Partitions, Unread: p.Unread,
		Frozen: durationpb.New(p.Frozen), Done: p.Done,
	}
	for _, w := range p.Waiting {
		out.Waiting = append(out.Waiting, truncate(w, maxWords))
	}
	return out
}

// AbortTopicMigration implements opsv1connect.OpsServiceHandler.
func (s *Service) AbortTopicMigration(
	ctx context.Context, req *opsv1.AbortTopicMigrationRequest,
) (*opsv1.AbortTopicMigrationResponse, error) {
	topic, err := s.cfg.Migrator.Abort(ctx, req.GetExecute())
	if err != nil {
		return nil, err
	}
	return &opsv1.AbortTopicMigrationResponse{Topic: topic}, nil
}

// ListTopicVersions implements opsv1connect.OpsServiceHandler.
func (s *Service) ListTopicVersions(
	ctx context.Context, _ *opsv1.ListTopicVersionsRequest,
) (*opsv1.ListTopicVersionsResponse, error) {
	state, err := versions.Load(ctx, s.cfg.Store)
	if err != nil {
		return nil, err
	}
	res := &opsv1.ListTopicVersionsResponse{}
	if m := state.Move; m != nil {
		res.Migrating, res.Phase, res.MigratingBy = m.Topic, phases[m.Phase], truncate(m.By, maxOperator)
	}
	for _, t := range kafka.Topics() {
		if t.Kind == kafka.Searches || t.Kind == kafka.SearchDeadLetterKind {
			continue // they have one version
		}
		for _, v := range state.Of(t.Name) {
			out := &opsv1.TopicVersion{Topic: t.Name, Name: versions.Name(t.Name, v.Number), Partitions: v.Partitions,
				Status: versionStatuses[v.Status]}
			if v.Until > 0 {
				out.Until, out.KeptUntil = timestamp(time.UnixMilli(v.Until)), timestamp(v.KeptUntil(t.Name))
			}
			res.Versions = append(res.Versions, out)
		}
	}
	return res, nil
}

// maxOperator bounds an operator's name, in bytes.
const maxOperator = 128

// RetireTopicVersion implements opsv1connect.OpsServiceHandler.
func (s *Service) RetireTopicVersion(
	ctx context.Context, req *opsv1.RetireTopicVersionRequest,
) (*opsv1.RetireTopicVersionResponse, error) {
	if err := s.cfg.Migrator.Retire(ctx, req.GetName(), req.GetExecute()); err != nil {
		return nil, err
	}
	return &opsv1.RetireTopicVersionResponse{}, nil
}
