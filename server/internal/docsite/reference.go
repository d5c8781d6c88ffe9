package docsite

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// reference is the page of the REST API.
func reference(source []byte) (*page, error) {
	var d document
	if err := json.Unmarshal(source, &d); err != nil {
		return nil, fmt.Errorf("docsite: OpenAPI document: %w", err)
	}
	p := &page{url: "/docs/reference", title: "REST reference", heading: d.Info.Title + " REST API " + d.Info.Version,
		summary: "Every call with its fields, answers and errors."}
	var calls []call
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, verb := range []string{"get", "post", "put", "patch", "delete"} {
			if o := d.Paths[path][verb]; o != nil {
				c := call{strings.ToUpper(verb), path, o}
				calls = append(calls, c)
				p.sections = append(p.sections, section{url: p.url + "#" + o.OperationID, page: p.title,
					heading: c.Method + " " + path, text: nameOf(o.OperationID) + ": " + o.Description})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		s := d.Components.Schemas[name]
		p.sections = append(p.sections, section{url: p.url + "#" + name, page: p.title, heading: short(name),
			text: strings.Join(append([]string{s.Description}, slices.Sorted(maps.Keys(s.Properties))...), " ")})
	}
	var out strings.Builder
	if err := d.show(calls).Render(&out); err != nil {
		return nil, fmt.Errorf("docsite: REST page: %w", err)
	}
	p.body = out.String()
	return p, nil
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
