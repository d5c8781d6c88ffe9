package topic_test

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/topicrpc"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
	service "github.com/parley-chat/parley/server/topic"
)

// serve starts a server in which everybody is alice, who makes topics, on a disk of its own,
// and dials it.
func serve() (client *topic.Client, stop func()) {
	dir, err := os.MkdirTemp("", "topic")
	must(err)
	disk, err := embedded.Open(embedded.Options{Dir: dir, Clock: time.Now})
	must(err)
	logger := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	topics, err := service.New(ctx, service.Config{
		Store: disk, Log: commitlog.NewLocal(records.Of(disk), time.Now), Logger: logger, Clock: time.Now,
		Audit: func(context.Context, string, string, string) (func(code, result string), error) {
			return func(string, string) {}, nil
		},
	})
	must(err)
	ran := make(chan error, 1)
	go func() { ran <- topics.Run(ctx, func() {}) }()
	services, err := api.New(api.Config{Store: disk, Logger: logger, Observe: func(string, string, time.Duration) {},
		More: topicrpc.New(topicrpc.Config{Topics: topics, Streams: topicrpc.NewStreams(nil),
			Identify: func(context.Context) topicrpc.Identity {
				return topicrpc.Identity{Token: auth.Principal{SessionID: "s", ExpiresAt: time.Now().Add(time.Hour)},
					Caller: service.Caller{Principal: "alice", Creator: true}}
			}}).Services()})
	must(err)
	mux := http.NewServeMux()
	for path, h := range services.Handlers() {
		mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			edge.Trust(r.Context())
			h.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(),
				auth.Principal{UserID: "alice", SessionID: "s", ExpiresAt: time.Now().Add(time.Hour)})))
		}))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	web, guard := edge.NewServer(mux, slog.DiscardHandler), edge.New(listener, edge.Limits{Connections: 1000}, logger)
	guard.Install(web.Server)
	served := make(chan struct{})
	go func() {
		_ = web.Serve(guard) // until it is closed
		close(served)
	}()
	client, err = topic.Dial(topic.Config{BaseURL: "http://" + listener.Addr().String(),
		Token: func(context.Context, bool) (string, error) { return "alice", nil }})
	must(err)
	return client, func() {
		must(web.Close())
		<-served
		cancel()
		must(errors.Join(<-ran, disk.Close(), os.RemoveAll(dir)))
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
