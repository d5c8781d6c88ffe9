package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/internal/jobs"
	"github.com/parley-chat/parley/workers/migrate"
)

// schemas registers or looks for the schemas of what this version publishes. It needs
// the store only.
func (s settings) schemas(ctx context.Context, verb string, stdout io.Writer) (err error) {
	if verb != "register" && verb != "verify" {
		return errUsage{errors.New("schemas needs register or verify")}
	}
	c := s.jobs.Engine
	c.Redis, c.Brokers, c.Logger = "", "", slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	eng, err := engine.Open(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(engine.ExplainStore(c, err), eng.Close()) }()
	own, err := bring(ctx, eng.Store, verb == "register")
	var missing *registry.MissingError
	if errors.As(err, &missing) {
		return differ(stdout, []string{missing.Error()}, "")
	}
	if err != nil {
		return err
	}
	return tell(stdout, lines(own), "")
}

// bring registers or looks for the schemas, those of topics under other names as well.
func bring(ctx context.Context, st store.Store, register bool) (registry.Own, error) {
	topics, err := versions.Load(ctx, st)
	if err != nil {
		return registry.Own{}, err
	}
	r := registry.New(st)
	find := r.FindOwn
	if register {
		find = r.RegisterOwn
	}
	own, err := find(ctx, jobs.Messages()...)
	if err != nil {
		return registry.Own{}, err
	}
	return own, migrate.Subjects(ctx, r, topics, register)
}

// lines says which schema has which id.
func lines(own registry.Own) (list []string) {
	for _, eventType := range slices.Sorted(maps.Keys(own.Events)) {
		list = append(list, fmt.Sprintf("%s: id %d", eventType, own.Events[eventType]))
	}
	for i, m := range jobs.Messages() {
		list = append(list, fmt.Sprintf("%s: id %d", m.Subject(), own.Messages[i]))
	}
	return list
}
