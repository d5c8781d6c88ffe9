// Package webclient serves the chat for browsers, and signs in the people of the demo.
//
// It owns the headers under which the page runs, and the rule for tokens without a secret:
// a person at this machine gets one, if the server is for trying it. Concurrency:
// everything is safe for concurrent use.
package webclient

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/parley-chat/parley/gen/web"
)

// Prefix is where everything lies that the page loads.
const Prefix = "/app/"

// worker is the path of the page's service worker.
const worker = Prefix + "worker.js"

// policy lets the page load and call its own origin, and nothing run that is not a file of it. Its
// one policy of trusted types makes the address of the service worker.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types worker"

// file is what is served for a path.
type file struct {
	mediaType     string
	plain, packed []byte
	tag           string
}

// load reads the files once: a server without browser clients compresses nothing.
var load = sync.OnceValues(func() (map[string]file, error) {
	types := map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
		".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}
	files := map[string]file{}
	names, err := fs.Glob(web.Files, "*")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		plain, err := web.Files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		packed, err := pack(plain)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(plain)
		at := Prefix + name
		if name == "index.html" {
			at = "/"
		}
		files[at] = file{types[path.Ext(name)], plain, packed, hex.EncodeToString(sum[:12])}
	}
	return files, nil
})

func pack(plain []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Handler serves / and what lies under Prefix; other requests go to next.
func Handler(demo Demo, codes Codes, next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Prefix+"config.json", demo.config(codes))
	mux.HandleFunc("POST "+Prefix+"demo-token", demo.token)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		files, err := load()
		if err != nil { // the files are ours
			http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
			return
		}
		f, ok := files[r.URL.Path]
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		f.serve(w, r)
	})
	return mux
}

// serve answers with the file, compressed if the browser can.
func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "this path is a page for people, which GET shows; RPCs are at /package.Service/Method",
			http.StatusMethodNotAllowed)
		return
	}
	body, tag := f.plain, `"`+f.tag+`"`
	h.Set("Vary", "Accept-Encoding")
	if acceptsGzip(r) {
		body, tag = f.packed, `"`+f.tag+`-gzip"`
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Type", f.mediaType)
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // asked for again each time, answered by the tag
	h.Set("ETag", tag)
	if r.URL.Path == worker {
		h.Set("Service-Worker-Allowed", "/") // it keeps the page, which is not below its own path
	}
	if strings.Contains(r.Header.Get("If-None-Match"), tag) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // an error means that the client is gone
	}
}

func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, weighed := strings.Cut(strings.ReplaceAll(coding, " ", ""), ";q=")
		if strings.EqualFold(name, "gzip") {
			return !weighed || strings.Trim(q, "0.") != ""
		}
	}
	return false
}
