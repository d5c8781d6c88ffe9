package app

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"github.com/parley-chat/parley/server/infra/edge"
)

const (
	// maxTokenlessRequest bounds a message of callers without a token, in bytes.
	maxTokenlessRequest = 4 << 10
	// watchGrace is the time that watchers of health have to learn of a drain
	// before their streams end.
	watchGrace = 250 * time.Millisecond
)

// handleTokenless serves what probes and tools use without a token: gRPC's health
// protocol and, if reflection is set, reflection. The function it returns is called at the
// drain: health turns to NOT_SERVING, and watches end, which would hold up the shutdown.
func handleTokenless(mux *http.ServeMux, names []string, reflection bool) (drain func()) {
	health := grpchealth.NewStaticChecker(names...)
	reflector := grpcreflect.NewStaticReflector(names...)
	limit := connect.WithReadMaxBytes(maxTokenlessRequest)
	serving, end := context.WithCancel(context.Background())

	path, checks := grpchealth.NewHandler(health, limit)
	mux.Handle(path, checks)
	watches := &edge.Slots{Max: maxWatches, Time: watchTime}
	mux.Handle(path+"Watch", watches.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(serving, cancel)()
		checks.ServeHTTP(w, r.WithContext(ctx))
	})))
	if reflection {
		streams := &edge.Slots{Max: maxReflections, Time: reflectionTime}
		for _, version := range []func(*grpcreflect.Reflector, ...connect.HandlerOption) (string,
			http.Handler){grpcreflect.NewHandlerV1, grpcreflect.NewHandlerV1Alpha} {
			path, handler := version(reflector, limit)
			mux.Handle(path, streams.Wrap(handler))
		}
	}
	return func() {
		for _, name := range append([]string{""}, names...) {
			health.SetStatus(name, grpchealth.StatusNotServing)
		}
		time.AfterFunc(watchGrace, end)
	}
}
