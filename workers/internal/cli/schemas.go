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
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/workers/internal/jobs"
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
	r := registry.New(eng.Store)
	if verb == "register" {
		own, err := r.RegisterOwn(ctx, jobs.Messages()...)
		if err != nil {
			return err
		}
		return tell(stdout, lines(own), "")
	}
	own, err := r.FindOwn(ctx, jobs.Messages()...)
	var missing *registry.MissingError
	if errors.As(err, &missing) {
		return differ(stdout, []string{missing.Error()}, "")
	}
	if err != nil {
		return err
	}
	return tell(stdout, lines(own), "")
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
