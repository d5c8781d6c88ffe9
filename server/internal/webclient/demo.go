package webclient

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

const maxBody = 1 << 10 // bytes of a request

// Demo lists the users that a person at this machine may sign in as without a secret.
type Demo struct {
	Users []string                          // none: no demo users
	Issue func(user string) (string, error) // a token for one of them
}

// Codes says how codes to sign in with get to people.
type Codes struct {
	To  string // kinds of addresses: any, email or none
	Log bool   // a person who tries the server at this machine finds them in its log
}

// config says how people may sign in here.
func (d Demo) config(codes Codes) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		here, users := local(r), []string{}
		if here {
			users = append(users, d.Users...)
		}
		answer(w, map[string]any{"demo": users, "codes": codes.To, "codesInLog": codes.Log && here})
	}
}

// token answers with a token for one of the people.
func (d Demo) token(w http.ResponseWriter, r *http.Request) {
	// A page of another origin could not read the answer. It need not cause it either.
	if err := http.NewCrossOriginProtection().Check(r); err != nil || !local(r) {
		http.Error(w, "tokens of the demo are for a browser at the server's own machine", http.StatusForbidden)
		return
	}
	var request struct {
		User string `json:"user"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&request); err != nil {
		http.Error(w, `the body must be {"user": "…"}`, http.StatusBadRequest)
		return
	}
	if !slices.Contains(d.Users, request.User) {
		http.Error(w, "no such person in the demo", http.StatusNotFound)
		return
	}
	token, err := d.Issue(request.User)
	if err != nil {
		http.Error(w, "no token could be made", http.StatusInternalServerError)
		return
	}
	answer(w, map[string]any{"token": token})
}

// local reports whether a request comes from this machine by one of its own names. Requests
// through a proxy may come from anywhere.
func local(r *http.Request) bool {
	for name := range r.Header {
		if name == "Forwarded" || name == "Via" || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-") {
			return false
		}
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return false
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.Trim(r.Host, "[]")
	}
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

func answer(w http.ResponseWriter, value any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(value) // an error means that the client is gone
}
