package ops

import (
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strconv"
)

// profilePath is below which profiles of the process are served.
const profilePath = "/debug/pprof/"

// maxProfileSeconds bounds how long one profile runs: it costs the process some of its
// speed for as long.
const maxProfileSeconds = 120

// serveProfiles adds the profiles of the Go runtime: which functions use the CPU and the memory,
// and what goroutines wait for. They show this program's code and no data of users. One is
// taken at a time.
func (s *Service) serveProfiles(mux *http.ServeMux) {
	free := make(chan struct{}, 1)
	add := func(pattern string, take http.HandlerFunc) {
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
			if v := r.URL.Query().Get("seconds"); v != "" {
				if n, err := strconv.Atoi(v); err != nil || n < 1 || n > maxProfileSeconds {
					http.Error(w, "seconds must be 1 to "+strconv.Itoa(maxProfileSeconds), http.StatusBadRequest)
					return
				}
			}
			select {
			case free <- struct{}{}:
				defer func() { <-free }()
			default:
				http.Error(w, "another profile is being taken: wait for it to end", http.StatusTooManyRequests)
				return
			}
			s.cfg.Logger.InfoContext(r.Context(), "ops: profile", slog.String("path", r.URL.Path),
				slog.String("by", actor(r.Context())))
			take(w, r)
		})
	}
	add(profilePath, pprof.Index) // the list, and all profiles but the two below
	add(profilePath+"profile", pprof.Profile)
	add(profilePath+"trace", pprof.Trace)
}
