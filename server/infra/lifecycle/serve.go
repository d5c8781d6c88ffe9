package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// restartPause lies between the end of a worker and its next start.
const restartPause = time.Second

// Restarted is a service that a process can do without for a while: if run ends by
// itself, it starts again after a second. It is ready at once: nothing waits for run, and a
// worker's failure is not the process's.
func Restarted(name string, log *slog.Logger, run func(ctx context.Context, ready func()) error) Service {
	return Service{Name: name, Run: func(ctx context.Context, ready func()) error {
		ready()
		for ctx.Err() == nil {
			err := run(ctx, func() {})
			if ctx.Err() != nil {
				break
			}
			log.Error(name+" ended and restarts", "error", err)
			pause(ctx, restartPause)
		}
		return nil //nolint:nilerr // the end of ctx is no failure
	}}
}

// pause waits for a time, or until ctx ends. This package imports no other of the server's.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// HTTPServer is an HTTP server; *http.Server is one.
type HTTPServer interface {
	Serve(net.Listener) error
	// Shutdown lets requests under way end, and Close cuts them.
	Shutdown(context.Context) error
	Close() error
}

// ServeHTTP serves on a listener until ctx ends. Then it calls draining, if given, lets
// requests under way finish within grace, and cuts off the rest; cut says whether there
// was any.
func ServeHTTP(
	ctx context.Context, srv HTTPServer, l net.Listener, grace time.Duration, draining func(),
) (cut bool, err error) {
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return false, err
	case <-ctx.Done():
	}
	if draining != nil {
		draining()
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if srv.Shutdown(end) != nil {
		cut = true
		_ = srv.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return cut, err
	}
	return cut, nil
}
