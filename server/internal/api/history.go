package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/parley-chat/parley/server/store"
)

// HistoryHeader is the header with what a client has been shown at most, as generation-commit: in
// requests, if the client keeps it, and in answers of unary calls.
const HistoryHeader = "Parley-History"

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
	value := header.Get(HistoryHeader)
	if h == nil || value == "" {
		return nil
	}
	generation, number, ok := strings.Cut(value, "-")
	commit, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || commit < 0 || len(value) > maxHistory {
		return invalidField(HistoryHeader, "is not one of an answer")
	}
	if h.of.Holds(generation, commit) {
		return nil
	}
	h.refused.Add(1)
	h.log.WarnContext(ctx, "a client was shown what the store does not have: the store is an older copy, or the client's server was another",
		"shown", generation, "commit", commit, "generation", h.of.Generation())
	return ErrHistory
}

// say puts into an answer what it may show; what was read for it must be on stable storage.
func (h *history) say(header http.Header) {
	if h != nil {
		header.Set(HistoryHeader, h.of.Generation()+"-"+strconv.FormatInt(h.of.Shown(), 10))
	}
}
