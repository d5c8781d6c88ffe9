package docsite

import (
	"bytes"
	"cmp"
	"fmt"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/parley-chat/parley/server/internal/webpage"
)

// render makes a page around its content, with a query in the field of the search.
func (s *site) render(p *page, query string, content g.Node) ([]byte, error) {
	var b bytes.Buffer
	err := webpage.Document(p.title+" · Parley", style,
		h.A(h.Class("skip"), h.Href("#content"), g.Text("To the text")),
		h.Header(
			h.A(h.Class("name"), h.Href("/docs"), g.Text("Parley")),
			h.A(h.Href("/"), g.Text("Chat")),
			h.Form(h.Role("search"), h.Action("/docs/search"), h.Method("get"),
				h.Label(h.For("q"), g.Text("Search")),
				h.Input(h.ID("q"), h.Name("q"), h.Type("search"), h.MaxLength(fmt.Sprint(maxQuery)), h.Value(query)),
				h.Button(g.Text("Search"))),
		),
		h.Div(h.Class("columns"),
			h.Nav(h.Class("documents"), h.Aria("label", "Documents"), g.Map(s.nav, func(part group) g.Node {
				return g.Group{h.P(g.Text(part.Name)), h.Ul(g.Map(part.Pages, func(one *page) g.Node {
					return h.Li(h.A(h.Href(one.url), g.If(one.url == p.url, h.Aria("current", "page")), g.Text(one.title)))
				}))}
			})),
			h.Main(h.ID("content"), h.H1(g.Text(cmp.Or(p.heading, p.title))), content),
		),
	).Render(&b)
	if err != nil {
		return nil, fmt.Errorf("docsite: %s: %w", p.url, err)
	}
	return b.Bytes(), nil
}

// article is the content of a document, with a table of contents if that is worth one.
func article(p *page) g.Node {
	const worthContents = 4 // headings
	return g.Group{
		g.If(len(p.contents) >= worthContents, h.Nav(h.Class("contents"), h.Aria("label", "On this page"),
			h.Ul(g.Map(p.contents, func(c heading) g.Node { return h.Li(h.A(h.Href("#"+c.ID), g.Text(c.Text))) })))),
		g.Raw(p.body), // goldmark has escaped what is from the document
	}
}

// start lists all documents.
func start(nav []group) g.Node {
	return g.Group{
		h.P(g.Text("A chat backend in which every API and every event is a protobuf contract. The chat of this server is at "),
			h.A(h.Href("/"), g.Text("/")), g.Text(", lines to paste into a shell are at "),
			h.A(h.Href("/try"), g.Text("/try")), g.Text(".")),
		g.Map(nav, func(part group) g.Node {
			return g.Group{h.H2(g.Text(part.Name)), h.Dl(g.Map(part.Pages, func(p *page) g.Node {
				return g.Group{h.Dt(h.A(h.Href(p.url), g.Text(p.title))), h.Dd(g.Text(p.summary))}
			}))}
		}),
	}
}

// found lists the hits of a search.
func found(query string, hits []hit) g.Node {
	switch {
	case query == "":
		return h.P(g.Text("Type words to look for."))
	case len(hits) == 0:
		return h.P(g.Text("Nothing has these words."))
	}
	return h.Ol(h.Class("hits"), g.Map(hits, func(one hit) g.Node {
		return h.Li(h.A(h.Href(one.URL), g.Text(one.Heading)),
			g.If(one.Page != one.Heading, g.Group{g.Text(" "), note(one.Page)}),
			h.P(g.Text(one.Before), h.Mark(g.Text(one.Match)), g.Text(one.Behind)))
	}))
}

func note(text string) g.Node { return h.Span(h.Class("note"), g.Text(text)) }

func code(text string) g.Node { return h.Code(g.Text(text)) }
