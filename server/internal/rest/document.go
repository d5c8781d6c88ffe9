package rest

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/parley-chat/parley/gen/openapi"
)

var (
	//go:embed docs.html
	pageSource string
	//go:embed docs.css
	pageStyle string
)

// document is what the page shows of an OpenAPI document.
type document struct {
	Info       struct{ Title, Version, Description string }
	Paths      map[string]map[string]*operation
	Components struct{ Schemas map[string]*schema }
}

type operation struct {
	OperationID string `json:"operationId"`
	Summary     string
	Description string
	Parameters  []parameter
	RequestBody *struct{ Content map[string]content }
	Responses   map[string]answer
}

type parameter struct {
	Name, In, Description string
	Required              bool
	Schema                *schema
}

type content struct{ Schema *schema }

type answer struct {
	Ref         string `json:"$ref"`
	Description string
	Content     map[string]content
}

// A schema's type is a string or a list of strings.
type schema struct {
	Ref         string `json:"$ref"`
	Type        any
	Format      string
	Pattern     string
	Description string
	Enum        []any
	Items       *schema
	Properties  map[string]*schema
	Required    []string
}

// call is an operation as the page lists it.
type call struct {
	Method, Path string
	*operation
}

// addDocument serves the OpenAPI document and its page. Both are public: they say
// no more than the source.
func (a *api) addDocument() error {
	page, err := renderPage(openapi.Document)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(pageStyle))
	policy := "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	a.mux.Handle("GET /api/v1/openapi.json", static("application/json", "default-src 'none'; frame-ancestors 'none'", openapi.Document))
	a.mux.Handle("GET /docs", static("text/html; charset=utf-8", policy, page))
	return nil
}

func static(kind, policy string, body []byte) http.Handler {
	sum := sha256.Sum256(body)
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", kind)
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(body) // an error means that the client has disconnected
	})
}

func renderPage(source []byte) ([]byte, error) {
	var d document
	if err := json.Unmarshal(source, &d); err != nil {
		return nil, fmt.Errorf("rest: OpenAPI document: %w", err)
	}
	var calls []call
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, verb := range []string{"get", "post", "put", "patch", "delete"} {
			if o := d.Paths[path][verb]; o != nil {
				calls = append(calls, call{strings.ToUpper(verb), path, o})
			}
		}
	}
	t, err := template.New("docs").Funcs(template.FuncMap{"kind": kindOf, "name": nameOf, "short": short, "required": slices.Contains[[]string]}).Parse(pageSource)
	if err != nil {
		return nil, fmt.Errorf("rest: page: %w", err)
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{
		"Info": d.Info, "Calls": calls, "Schemas": d.Components.Schemas,
		"Style": template.CSS(pageStyle), //nolint:gosec // our own file
	})
	if err != nil {
		return nil, fmt.Errorf("rest: page: %w", err)
	}
	return out.Bytes(), nil
}

// nameOf is the last part of a reference.
func nameOf(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// short is a type's name without its package.
func short(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// kindOf is a schema's type in a few words; empty for a reference.
func kindOf(s *schema) string {
	if s == nil || s.Ref != "" {
		return ""
	}
	var kinds []string
	switch t := s.Type.(type) {
	case string:
		kinds = []string{t}
	case []any:
		for _, k := range t {
			kinds = append(kinds, fmt.Sprint(k))
		}
	}
	text := strings.Join(kinds, " or ")
	if s.Format != "" {
		text += " (" + s.Format + ")"
	}
	return text
}
