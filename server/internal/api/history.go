package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"

	commits "github.com/parley-chat/parley/server/history"
	"github.com/parley-chat/parley/server/store"
)

const maxHistory = 128 // bytes of the header

// ErrHistory says that the caller was shown what is not part of the store's history.
var ErrHistory = errors.New("api: another history")

// history compares what callers were shown with what the store has; nil compares nothing.
type history struct {
	of      store.History
	log     *slog.Logger
	refused atomic.Int64
}

// OtherHistories counts the calls that were refused because their callers were shown what the store
// does not have.
func (a *API) OtherHistories() int64 {
	if a.history == nil {
		return 0
	}
	return a.history.refused.Load()
}

// check refuses a call whose caller was shown what the store does not have: its versions, tags,
// revisions and ids may be those of something else by now.
func (h *history) check(ctx context.Context, header http.Header) error {
	value := header.Get(commits.Header)
	if h == nil || value == "" {
		return nil
	}
	shown, ok := commits.Parse(value)
	if !ok || len(value) > maxHistory {
		return invalidField(commits.Header, "is not one of an answer")
	}
	if h.of.Holds(shown.Generation, shown.Commit) {
		return nil
	}
	h.refused.Add(1)
	h.log.WarnContext(ctx, "a client was shown what the store does not have: the store is an older copy, or the client's server was another",
		"shown", shown.Generation, "commit", shown.Commit, "generation", h.of.Generation())
	return ErrHistory
}

// say puts into an answer what it may show; the rows that were read for it must be on
// stable storage.
func (h *history) say(header http.Header) {
	if h != nil {
		header.Set(commits.Header, commits.Commit{Generation: h.of.Generation(), Commit: h.of.Shown()}.String())
	}
}
