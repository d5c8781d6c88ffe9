// Package api serves a schema registry over HTTP, as Confluent's API describes it,
// so that the clients of others work with it.
//
// It owns paths, parameters, JSON and status codes. The registry owns schemas and the rules
// for registering them. Contexts, data contract rules, metadata and types besides PROTOBUF
// are not offered. The program that mounts the handler decides which callers it admits.
//
// Concurrency: the handler is safe for use by many goroutines.
package api

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/server/registry"
)

const (
	protobuf   = "PROTOBUF"
	maxVersion = 1<<31 - 1
)

func metadata(*http.Request) (any, error) {
	return map[string]any{"id": "parley", "version": "parley",
		"scope": map[string]any{"path": []string{}, "clusters": map[string]string{}}}, nil
}

func flag(r *http.Request, name string) bool {
	on, err := strconv.ParseBool(r.URL.Query().Get(name))
	return err == nil && on
}

func options(r *http.Request) registry.ListOptions {
	q := r.URL.Query()
	number := func(name string) int {
		n, err := strconv.Atoi(q.Get(name))
		if err != nil {
			return 0
		}
		return max(n, 0)
	}
	o := registry.ListOptions{
		Prefix: q.Get("subjectPrefix"), Deleted: flag(r, "deleted"), DeletedOnly: flag(r, "deletedOnly"),
		LatestOnly: flag(r, "latestOnly"),
		Offset:     number("offset"), Limit: number("limit"),
	}
	for _, context := range []string{":*:", ":.:"} { // all contexts: there is one
		o.Prefix = strings.TrimPrefix(o.Prefix, context)
	}
	return o
}

// subjectOf is the subject in a path, without the name of the one context that there is.
func subjectOf(r *http.Request) string { return strings.TrimPrefix(r.PathValue("subject"), ":.:") }

func id(r *http.Request) (int, error) {
	n, err := strconv.ParseInt(r.PathValue("id"), 10, 32)
	if err != nil {
		return 0, errNotFound
	}
	return int(n), nil
}

func versionOf(r *http.Request) (int, error) {
	s := r.PathValue("v")
	if strings.EqualFold(s, "latest") {
		return registry.Latest, nil
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 || n > maxVersion {
		return 0, registry.VersionOutOfBounds(s)
	}
	return int(n), nil
}

// request is the body of registrations, look-ups and questions.
type request struct {
	Schema     string               `json:"schema"`
	Type       string               `json:"schemaType"`
	References []registry.Reference `json:"references"`
	ID         int                  `json:"id"`
	Version    int                  `json:"version"`
	Metadata   json.RawMessage      `json:"metadata"`
	RuleSet    json.RawMessage      `json:"ruleSet"`
	AddTags    json.RawMessage      `json:"schemaTagsToAdd"`
	RemoveTags json.RawMessage      `json:"schemaTagsToRemove"`
}

// present says whether a part of a request has something in it.
func present(raw json.RawMessage) bool {
	return !slices.Contains([]string{"", "null", "{}", "[]", "false", `""`}, string(raw))
}

func body(r *http.Request, into any) error {
	err := json.NewDecoder(r.Body).Decode(into)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &registry.Error{Code: registry.CodeTooLarge, Message: "The request is too large"}
	case err != nil:
		return &registry.Error{Code: http.StatusBadRequest, Message: "The request is not the JSON that is expected"}
	}
	return nil
}

func schema(r *http.Request) (registry.Schema, request, error) {
	var in request
	if err := body(r, &in); err != nil {
		return registry.Schema{}, in, err
	}
	switch {
	case in.Type != protobuf:
		return registry.Schema{}, in, &registry.Error{Code: registry.CodeSchema,
			Message: "Invalid schema: this registry holds schemas of type PROTOBUF"}
	case present(in.RuleSet), present(in.Metadata), present(in.AddTags), present(in.RemoveTags):
		return registry.Schema{}, in, &registry.Error{Code: registry.CodeRules,
			Message: "Rules, metadata and tags are not offered: rules stand in the schema, as options"}
	}
	return registry.Schema{Text: in.Schema, References: in.References}, in, nil
}

// versionJSON is a version as it is shown.
type versionJSON struct {
	Subject    string               `json:"subject,omitempty"`
	Version    int                  `json:"version,omitempty"`
	ID         int                  `json:"id,omitempty"`
	Type       string               `json:"schemaType"`
	References []registry.Reference `json:"references,omitempty"`
	Schema     string               `json:"schema"`
	Deleted    bool                 `json:"deleted,omitempty"`
	MaxID      int                  `json:"maxId,omitempty"`
}

func text(r *http.Request, v registry.Version) string {
	if r.URL.Query().Get("format") != "serialized" {
		return v.Text
	}
	d := &descriptorpb.FileDescriptorProto{}
	if proto.Unmarshal(v.Descriptor, d) == nil && d.GetName() == "" {
		d.Name = proto.String("default") // readers refuse a file without a name
		if b, err := (proto.MarshalOptions{Deterministic: true}).Marshal(d); err == nil {
			return base64.StdEncoding.EncodeToString(b)
		}
	}
	return base64.StdEncoding.EncodeToString(v.Descriptor)
}

func toJSON(r *http.Request, v registry.Version) versionJSON {
	return versionJSON{Subject: v.Subject, Version: v.Version, ID: v.ID, Type: protobuf, References: v.References,
		Schema: text(r, v), Deleted: v.Deleted}
}

func (s *server) schemas(r *http.Request) (any, error) {
	return listed(s.registry.List(r.Context(), options(r)), func(v registry.Version) any { return toJSON(r, v) }), nil
}

// uses returns the versions that have the id of the path.
func (s *server) uses(r *http.Request) ([]registry.Version, error) {
	n, err := id(r)
	if err != nil {
		return nil, err
	}
	return s.registry.Uses(r.Context(), n)
}

func (s *server) byID(r *http.Request) (any, error) {
	uses, err := s.uses(r)
	if err != nil {
		return nil, err
	}
	out := versionJSON{Type: protobuf, References: uses[0].References, Schema: text(r, uses[0])}
	if flag(r, "fetchMaxId") {
		out.MaxID, err = s.registry.MaxID(r.Context())
	}
	return out, err
}

func (s *server) textByID(r *http.Request) (any, error) {
	uses, err := s.uses(r)
	if err != nil {
		return nil, err
	}
	return raw(text(r, uses[0])), nil
}

func shown(r *http.Request, v registry.Version) bool {
	subject := r.URL.Query().Get("subject")
	return (!v.Deleted || flag(r, "deleted")) && (subject == "" || subject == v.Subject)
}

func (s *server) subjectsByID(r *http.Request) (any, error) {
	uses, err := s.uses(r)
	out := []string{}
	for _, v := range uses {
		if shown(r, v) && !slices.Contains(out, v.Subject) {
			out = append(out, v.Subject)
		}
	}
	return out, err
}

func (s *server) versionsByID(r *http.Request) (any, error) {
	type use struct {
		Subject string `json:"subject"`
		Version int    `json:"version"`
	}
	uses, err := s.uses(r)
	out := []use{}
	for _, v := range uses {
		if shown(r, v) {
			out = append(out, use{v.Subject, v.Version})
		}
	}
	return out, err
}

func (s *server) subjects(r *http.Request) (any, error) {
	return listed(s.registry.Subjects(r.Context(), options(r)), func(subject string) any { return subject }), nil
}

// byMetadata searches for the newest version with some metadata, which none has.
func (s *server) byMetadata(r *http.Request) (any, error) {
	if _, err := s.registry.Version(r.Context(), subjectOf(r), registry.Latest, flag(r, "deleted")); err != nil {
		return nil, err
	}
	return nil, &registry.Error{Code: registry.CodeSchemaNotFound,
		Message: "Schema not found: schemas have no metadata here"}
}

func (s *server) lookup(r *http.Request) (any, error) {
	in, _, err := schema(r)
	if err != nil {
		return nil, err
	}
	v, err := s.registry.Lookup(r.Context(), subjectOf(r), in, flag(r, "normalize"), flag(r, "deleted"))
	if err != nil {
		return nil, err
	}
	return toJSON(r, v), nil
}

func (s *server) register(r *http.Request) (any, error) {
	in, req, err := schema(r)
	if err != nil {
		return nil, err
	}
	o := registry.RegisterOptions{Normalize: flag(r, "normalize"), ID: max(req.ID, 0), Version: max(req.Version, 0)}
	v, err := s.registry.Register(r.Context(), subjectOf(r), in, o)
	if err != nil {
		return nil, err
	}
	// The id alone: clients take a schema in this answer for the form they sent.
	return map[string]int{"id": v.ID}, nil
}

func (s *server) deleteSubject(r *http.Request) (any, error) {
	return s.registry.DeleteSubject(r.Context(), subjectOf(r), flag(r, "permanent"))
}

func (s *server) versions(r *http.Request) (any, error) {
	return s.registry.Versions(r.Context(), subjectOf(r), options(r))
}

func (s *server) find(r *http.Request) (registry.Version, error) {
	n, err := versionOf(r)
	if err != nil {
		return registry.Version{}, err
	}
	return s.registry.Version(r.Context(), subjectOf(r), n, flag(r, "deleted"))
}

func (s *server) version(r *http.Request) (any, error) {
	v, err := s.find(r)
	if err != nil {
		return nil, err
	}
	return toJSON(r, v), nil
}

func (s *server) textByVersion(r *http.Request) (any, error) {
	v, err := s.find(r)
	if err != nil {
		return nil, err
	}
	return raw(text(r, v)), nil
}

func (s *server) deleteVersion(r *http.Request) (any, error) {
	n, err := versionOf(r)
	if err != nil {
		return nil, err
	}
	return s.registry.DeleteVersion(r.Context(), subjectOf(r), n, flag(r, "permanent"))
}

func (s *server) referencedBy(r *http.Request) (any, error) {
	n, err := versionOf(r)
	if err != nil {
		return nil, err
	}
	return s.registry.Referrers(r.Context(), subjectOf(r), n)
}

func (s *server) compatible(r *http.Request) (any, error) {
	n := 0
	if r.PathValue("v") != "" {
		var err error
		if n, err = versionOf(r); err != nil {
			return nil, err
		}
	}
	in, _, err := schema(r)
	if err != nil {
		return nil, err
	}
	ok, messages, err := s.registry.Compatible(r.Context(), subjectOf(r), n, in, flag(r, "normalize"))
	out := map[string]any{"is_compatible": ok}
	if flag(r, "verbose") && messages != nil {
		out["messages"] = messages
	}
	return out, err
}

func (s *server) level(r *http.Request) (any, error) {
	level, err := s.registry.Level(r.Context(), subjectOf(r), flag(r, "defaultToGlobal"))
	return map[string]string{"compatibilityLevel": level}, err
}

func (s *server) setLevel(r *http.Request) (any, error) {
	in := map[string]json.RawMessage{}
	if err := body(r, &in); err != nil {
		return nil, err
	}
	level := ""
	for name, raw := range in {
		switch {
		case name == "compatibility":
			_ = json.Unmarshal(raw, &level) // a value that is no text is no level
		case present(raw):
			return nil, &registry.Error{Code: http.StatusUnprocessableEntity,
				Message: "Only the compatibility of subjects can be configured; normalize is a parameter of requests"}
		}
	}
	return named("compatibility", level), s.registry.SetLevel(r.Context(), subjectOf(r), level)
}

func named(name, value string) map[string]string { return map[string]string{name: value} }

func (s *server) resetLevel(r *http.Request) (any, error) {
	level, err := s.registry.ResetLevel(r.Context(), subjectOf(r))
	return named("compatibility", level), err
}

func (s *server) mode(r *http.Request) (any, error) {
	mode, err := s.registry.Mode(r.Context(), subjectOf(r), flag(r, "defaultToGlobal"))
	return named("mode", mode), err
}

func (s *server) setMode(r *http.Request) (any, error) {
	var in struct {
		Mode string `json:"mode"`
	}
	if err := body(r, &in); err != nil {
		return nil, err
	}
	return named("mode", in.Mode), s.registry.SetMode(r.Context(), subjectOf(r), in.Mode, flag(r, "force"))
}

func (s *server) resetMode(r *http.Request) (any, error) {
	mode, err := s.registry.ResetMode(r.Context(), subjectOf(r))
	return named("mode", mode), err
}
