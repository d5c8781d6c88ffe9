package app

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
)

const (
	// maxOpenRequest bounds a message of those who need no token, in bytes.
	maxOpenRequest = 4 << 10
	// watchGrace is the time that watchers of health have to be told of a drain
	// before their streams end.
	watchGrace = 250 * time.Millisecond
)

// handleOpen serves what probes and tools use without a token: gRPC's health
// protocol and reflection. The function it returns is called at the drain: health
// turns to NOT_SERVING, and watches end, which would hold up the shutdown.
func handleOpen(mux *http.ServeMux, names []string) (drain func()) {
	health := grpchealth.NewStaticChecker(names...)
	reflector := grpcreflect.NewStaticReflector(names...)
	limit := connect.WithReadMaxBytes(maxOpenRequest)
	serving, end := context.WithCancel(context.Background())

	path, checks := grpchealth.NewHandler(health, limit)
	mux.Handle(path, checks)
	mux.HandleFunc(path+"Watch", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(serving, cancel)()
		checks.ServeHTTP(w, r.WithContext(ctx))
	})
	mux.Handle(grpcreflect.NewHandlerV1(reflector, limit))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, limit))
	return func() {
		for _, name := range append([]string{""}, names...) {
			health.SetStatus(name, grpchealth.StatusNotServing)
		}
		time.AfterFunc(watchGrace, end)
	}
}
