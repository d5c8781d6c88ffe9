package docsite

import (
	"fmt"
	"maps"
	"slices"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// show is the content of the page of the REST API: a table of its calls, then each call, then each type.
func (d *document) show(calls []call) g.Node {
	return g.Group{
		h.P(g.Text(d.Info.Description)),
		h.P(g.Text("The same as an OpenAPI document: "),
			h.A(h.Href("/api/v1/openapi.json"), g.Text("/api/v1/openapi.json"))),
		h.Nav(h.Class("calls"), h.Aria("label", "Calls"), g.Map(calls, func(c call) g.Node {
			return g.Group{h.A(h.Href("#"+c.OperationID), c.line()), g.Text(" " + c.Summary), h.Br()}
		})),
		g.Map(calls, call.show),
		inOrder(d.Components.Schemas, showSchema),
	}
}

// line is how a call begins on the wire.
func (c call) line() g.Node {
	return g.Group{h.Span(h.Class("verb"), g.Text(c.Method)), g.Text(" "), code(c.Path)}
}

func (c call) show() g.Node {
	return h.Section(h.ID(c.OperationID),
		h.H2(c.line()),
		h.P(g.Text(c.Description)),
		g.Iff(len(c.Parameters) > 0, func() g.Node { return h.Table(g.Map(c.Parameters, parameter.show)) }),
		g.Iff(c.RequestBody != nil, func() g.Node {
			return inOrder(c.RequestBody.Content, func(_ string, b content) g.Node {
				return g.Group{h.P(g.Text("Body: "), b.Schema.link()), b.Schema.fields()}
			})
		}),
		h.Table(inOrder(c.Responses, func(status string, a answer) g.Node {
			return h.Tr(h.Td(code(status)), h.Td(a.show()))
		})),
	)
}

func (p parameter) show() g.Node {
	return h.Tr(h.Td(code(p.Name)),
		h.Td(g.Text(p.In), g.If(p.Required, g.Group{g.Text(", "), note("required")})),
		h.Td(p.Schema.link()),
		h.Td(g.Text(p.Description), p.Schema.pattern()))
}

func (a answer) show() g.Node {
	if a.Ref != "" {
		return g.Group{g.Text("An error. "), h.A(h.Href("#Status"), g.Text("Status"))}
	}
	return g.Group{g.Text(a.Description), inOrder(a.Content, func(_ string, c content) g.Node {
		return g.Group{g.Text(" "), c.Schema.link()}
	})}
}

func showSchema(name string, s *schema) g.Node {
	values := g.Group{}
	for i, v := range s.Enum {
		if i > 0 {
			values = append(values, g.Text(", "))
		}
		values = append(values, code(fmt.Sprint(v)))
	}
	return h.Section(h.ID(name),
		h.H2(code(name)),
		h.P(g.Text(s.Description)),
		s.fields(),
		g.If(len(values) > 0, h.P(values)),
	)
}

// link names a schema's type, and leads to it if the page has it.
func (s *schema) link() g.Node {
	switch {
	case s == nil:
		return nil
	case s.Ref != "":
		return h.A(h.Href("#"+nameOf(s.Ref)), g.Text(short(nameOf(s.Ref))))
	case s.Items != nil:
		return g.Group{g.Text("list of "), s.Items.link()}
	}
	return g.Text(kindOf(s))
}

func (s *schema) pattern() g.Node {
	if s == nil || s.Pattern == "" {
		return nil
	}
	return g.Group{g.Text(" "), code(s.Pattern)}
}

func (s *schema) fields() g.Node {
	if s == nil || len(s.Properties) == 0 {
		return nil
	}
	return h.Table(inOrder(s.Properties, func(name string, f *schema) g.Node {
		return h.Tr(h.Td(code(name)),
			h.Td(f.link(), g.If(slices.Contains(s.Required, name), g.Group{g.Text(" "), note("required")})),
			h.Td(g.Text(f.Description), f.pattern()))
	}))
}

// inOrder shows the entries of a map in the order of their names.
func inOrder[T any](m map[string]T, show func(string, T) g.Node) g.Node {
	var list g.Group
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, show(name, m[name]))
	}
	return list
}
