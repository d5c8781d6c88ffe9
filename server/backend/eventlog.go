package backend

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/eventlog/upgrade"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/port"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// defaultLogBytes caps what the event log copies if no setting does.
const defaultLogBytes = 512 << 20

// events is the event log of an embedded store, and the port from which others read it.
type events struct {
	*eventlog.Log
	port *port.Port
}

// openEvents opens the event log in a store. That of an earlier release, in files of its own, moves into the store
// first.
func openEvents(ctx context.Context, cfg Config, st *embedded.Store, logs *commitlog.Local) (_ *events, err error) {
	state, err := versions.Load(ctx, st)
	if err != nil {
		return nil, err
	}
	targets := cfg.Embedded.Search
	if targets == nil {
		targets = search.DefaultTargets()
	}
	topics := append(state.All(), targets.Undeclared()...)
	if err := moveLog(ctx, cfg, st, logs, topics, state, targets); err != nil {
		return nil, err
	}
	if err := keepPartitions(ctx, logs, topics); err != nil {
		return nil, err
	}
	e := &events{}
	e.Log, err = eventlog.Open(ctx, eventlog.Config{
		Store: st, Log: logs, Generation: st.Generation(), Topics: topics,
		MaxBytes: cmp.Or(cfg.Embedded.LogBytes, defaultLogBytes), Clock: time.Now,
		Logger: cfg.Logger,
		Committed: func(ctx context.Context, group string) (map[kafka.Partition]int64, error) {
			return e.port.Committed(ctx, group)
		},
	})
	if err != nil {
		return nil, err
	}
	return e, e.open(ctx, cfg, st)
}

// open opens the port.
func (e *events) open(ctx context.Context, cfg Config, st *embedded.Store) error {
	password, err := port.Password(cfg.Embedded.DataDir)
	if err != nil {
		return fmt.Errorf("read the password of the Kafka port: %w", err)
	}
	e.port, err = port.Open(ctx, port.Config{
		Log: e.Log, Records: records.Of(st), Listen: cfg.Embedded.Kafka, Fallback: cfg.Embedded.KafkaFallback,
		Connections: cfg.Embedded.KafkaConnections, Password: password, Own: kafka.Groups(), Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	err = port.Credentials{Address: e.port.Addr(), Password: password}.Save(cfg.Embedded.DataDir)
	if err != nil {
		e.port.Close()
	}
	return err
}

// keepPartitions gives topics of search events the partitions that the log has of them: nothing depends on an order
// across their keys.
func keepPartitions(ctx context.Context, logs *commitlog.Local, topics []kafka.Topic) error {
	had, err := logs.EventTopics(ctx)
	if err != nil {
		return err
	}
	for _, t := range had {
		i := slices.IndexFunc(topics, func(d kafka.Topic) bool { return d.Name == t.Name })
		if i >= 0 && (topics[i].Kind == kafka.Searches || topics[i].Kind == kafka.SearchDeadLetterKind) {
			topics[i].Partitions = t.Partitions
		}
	}
	return nil
}

// progressEvery is the time between two lines about the move of a log.
const progressEvery = 5 * time.Second

// moveLog moves the log of an earlier release into the store.
func moveLog(ctx context.Context, cfg Config, st *embedded.Store, logs *commitlog.Local, topics []kafka.Topic,
	state versions.State, targets search.Targets,
) error {
	log, shown := loggerOf(cfg), time.Now()
	var lost []string // generations of what the store lacks
	report, err := upgrade.Run(ctx, upgrade.Config{
		Dir: filepath.Join(cfg.Embedded.DataDir, "log"), Store: st, Log: logs, Topics: topics, Versions: state,
		Search: targets, Groups: port.Rows(records.Of(st), kafka.Groups()), Owner: port.User, Clock: time.Now, Logger: log,
		Room: func() int64 {
			s := st.Space()
			return int64(s.Free) - int64(s.Reserve)
		},
		Progress: func(done, total int64) {
			if time.Since(shown) >= progressEvery {
				shown = time.Now()
				log.Info("the event log moves into the store", "megabytes", done>>20, "of", total>>20)
			}
		},
		Behind: func(list []upgrade.Event) (err error) {
			lost, err = behind(cfg, st, list)
			return err
		},
	})
	if err == nil && report.Moved && len(lost) > 0 {
		slices.Sort(lost)
		err = st.Renew(slices.Compact(lost)...)
	}
	return err
}

// behind refuses a store that is behind the log of an earlier release, unless the loss is accepted: published events
// were on the disk before, so the store has lost them. It returns the generations of what is lost.
func behind(cfg Config, st *embedded.Store, list []upgrade.Event) (generations []string, err error) {
	for _, e := range list {
		if st.Dropped(e.Generation) {
			continue
		}
		generations = append(generations, e.Generation)
		err = embedded.Lost(fmt.Sprintf("the log has version %d of chat %s (%s, offset %d), the store does not",
			e.Version, e.Chat, e.Partition, e.Offset), st.Generation())
	}
	if err == nil || !st.Holds(cfg.Embedded.AcceptLoss, 0) {
		return nil, err
	}
	loggerOf(cfg).Warn("continuing without data that was acknowledged", "error", err)
	return generations, nil
}
