package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/registry"
)

const (
	contentType = "application/vnd.schemaregistry.v1+json"
	maxBody     = registry.MaxSchema*2 + 64<<10 // a schema with every character escaped, and references

	// Bounds of what runs at once. A list holds a page of the store and a piece.
	maxLists    = 8
	maxCompiles = 8
	maxWait     = 10 * time.Second
	pieceSize   = 32 << 10
	pieceTime   = 30 * time.Second
	listTime    = 5 * time.Minute
)

type server struct {
	registry *registry.Registry
	log      *slog.Logger
	lists    chan struct{} // slots of requests that stream a list
	compiles chan struct{} // slots of requests that have a schema compiled
}

// Handler serves a registry at the root of its path.
func Handler(r *registry.Registry, log *slog.Logger) http.Handler {
	s := &server{r, log, make(chan struct{}, maxLists), make(chan struct{}, maxCompiles)}
	mux := http.NewServeMux()
	for path, methods := range s.routes() {
		h := s.dispatch(methods)
		mux.Handle(path, h)
		// some clients end paths with a slash
		if path != "/" && !strings.HasSuffix(path, "$}") && !strings.HasSuffix(path, "...}") {
			mux.Handle(path+"/{$}", h)
		}
	}
	return mux
}

type (
	answer  = func(*http.Request) (any, error)
	methods map[string]answer
)

func (s *server) routes() map[string]methods {
	const get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	compatible := methods{post: s.limited(s.compiles, s.compatible)}
	level := methods{get: s.level, put: s.setLevel, del: s.resetLevel}
	mode := methods{get: s.mode, put: s.setMode, del: s.resetMode}
	return map[string]methods{
		"/{$}": {get: func(*http.Request) (any, error) { return struct{}{}, nil }},
		"/schemas/types": {get: func(*http.Request) (any, error) {
			return []string{protobuf},
				nil
		}},
		"/contexts": {get: func(*http.Request) (any, error) {
			return []string{"."},
				nil
		}},
		"/v1/metadata/id":                                {get: metadata},
		"/v1/metadata/version":                           {get: metadata},
		"/schemas":                                       {get: s.limited(s.lists, s.schemas)},
		"/schemas/ids/{id}":                              {get: s.byID},
		"/schemas/ids/{id}/schema":                       {get: s.textByID},
		"/schemas/ids/{id}/subjects":                     {get: s.subjectsByID},
		"/schemas/ids/{id}/versions":                     {get: s.versionsByID},
		"/subjects":                                      {get: s.limited(s.lists, s.subjects)},
		"/subjects/{subject}":                            {post: s.limited(s.compiles, s.lookup), del: s.deleteSubject},
		"/subjects/{subject}/metadata":                   {get: s.byMetadata},
		"/subjects/{subject}/versions":                   {get: s.versions, post: s.limited(s.compiles, s.register)},
		"/subjects/{subject}/versions/{v}":               {get: s.version, del: s.deleteVersion},
		"/subjects/{subject}/versions/{v}/schema":        {get: s.textByVersion},
		"/subjects/{subject}/versions/{v}/referencedby":  {get: s.referencedBy},
		"/compatibility/subjects/{subject}/versions":     compatible,
		"/compatibility/subjects/{subject}/versions/{v}": compatible,
		"/config":                       level,
		"/config/{subject}":             level,
		"/mode":                         mode,
		"/mode/{subject}":               mode,
		"/contexts/{context}/{rest...}": {"": func(*http.Request) (any, error) { return nil, errContext }},
		"/":                             {"": func(*http.Request) (any, error) { return nil, errNotFound }},
	}
}

func (s *server) dispatch(m methods) http.Handler {
	allowed := slices.Sorted(maps.Keys(m))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		f := m[method]
		if f == nil {
			f = m[""] // of any method
		}
		if f == nil {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			write(s.log, w, r, nil, errMethod)
			return
		}
		out, err := f(r)
		write(s.log, w, r, out, err)
	})
}

// limited lets a bounded number of such calls run; others wait for a while.
func (s *server) limited(slots chan struct{}, f answer) answer {
	return func(r *http.Request) (any, error) {
		wait := time.NewTimer(maxWait)
		defer wait.Stop()
		select {
		case slots <- struct{}{}:
		case <-wait.C:
			return nil, errBusy
		case <-r.Context().Done():
			return nil, errBusy
		}
		out, err := f(r)
		if list, ok := out.(stream); ok && err == nil {
			return stream(func(w io.Writer) error {
				defer func() { <-slots }()
				return list(w)
			}), nil
		}
		<-slots
		return out, err
	}
}

var (
	errNotFound = &registry.Error{Code: http.StatusNotFound, Message: "HTTP 404 Not Found"}
	errMethod   = &registry.Error{Code: http.StatusMethodNotAllowed, Message: "HTTP 405 Method Not Allowed"}
	errContext  = &registry.Error{Code: registry.CodeSubject,
		Message: "Contexts are not offered: all subjects are in the default one, \".\""}
	errBusy = &registry.Error{Code: http.StatusTooManyRequests, Message: "Too many such requests at once: try again"}
)

// raw is a schema as it is, without JSON around it.
type raw string

// stream writes a list of any length.
type stream func(io.Writer) error

type failure struct {
	Code    int    `json:"error_code"`
	Message string `json:"message"`
}

// write answers in JSON. Only refusals name the mistake; internal failures go to the log.
func write(log *slog.Logger, w http.ResponseWriter, r *http.Request, out any, err error) {
	w.Header().Set("Content-Type", contentType)
	status := http.StatusOK
	if list, ok := out.(stream); ok && err == nil {
		body := &streamed{w: w, control: http.NewResponseController(w), end: time.Now().Add(listTime)}
		if err = list(body); err == nil {
			return
		}
		if body.began { // the sent part must not pass for the whole list
			log.ErrorContext(r.Context(), "schema registry: a list was cut", "path", r.URL.Path, "error", err)
			panic(http.ErrAbortHandler)
		}
	}
	if err != nil {
		var refusal *registry.Error
		if errors.As(err, &refusal) {
			status, out = refusal.Status(), failure{refusal.Code, refusal.Message}
		} else {
			log.ErrorContext(r.Context(), "schema registry", "error", err)
			status, out = http.StatusInternalServerError, failure{registry.CodeStore, "Error in the backend data store"}
		}
	}
	if source, ok := out.(raw); ok && err == nil {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(source))
		return
	}
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(out) // the caller has disconnected if this fails
}

// streamed is the body of a list: each piece has a deadline of its own, so that a long
// list is not cut and a caller who does not read holds nothing.
type streamed struct {
	w       http.ResponseWriter
	control *http.ResponseController
	began   bool
	end     time.Time // of the whole list
}

func (s *streamed) Write(b []byte) (int, error) {
	s.began = true
	deadline := time.Now().Add(pieceTime)
	if deadline.After(s.end) {
		deadline = s.end
	}
	_ = s.control.SetWriteDeadline(deadline) // recorders have none
	return s.w.Write(b)
}

// listed streams a list as a JSON array, in pieces; a failure before the first piece is
// full is an answer of its own.
func listed[T any](list iter.Seq2[T, error], show func(T) any) stream {
	return func(w io.Writer) error {
		out := bufio.NewWriterSize(w, pieceSize)
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		before := byte('[')
		for v, err := range list {
			if err != nil {
				return err
			}
			_ = out.WriteByte(before) // errors stay until Flush
			before = ','
			if err := e.Encode(show(v)); err != nil {
				return err
			}
		}
		if before == '[' {
			_ = out.WriteByte('[')
		}
		_, _ = out.WriteString("]\n")
		return out.Flush()
	}
}
