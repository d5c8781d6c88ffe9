package docsite

import (
	"bytes"
	"errors"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// sectionLevel is the deepest level of headings that begin a section of the search.
const sectionLevel = 3

// notInAnchor is what the name of a place in a page does not have.
var notInAnchor = regexp.MustCompile(`[^a-z0-9_]+`)

// renderDocument makes the page of a file of the tree.
func renderDocument(file string, source []byte) (*page, error) {
	// Raw HTML is left out, and nothing has a style of its own: the policy forbids it.
	md := goldmark.New(
		goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignNone))),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	doc := md.Parser().Parse(text.NewReader(source))
	p := &page{url: urlOf(file)}
	links(doc, file)
	p.read(doc, source)
	if p.title == "" {
		return nil, errors.New("no title")
	}
	var out bytes.Buffer
	if h, ok := doc.FirstChild().(*ast.Heading); ok && h.Level == 1 { // stands above the contents
		doc.RemoveChild(doc, h)
	}
	if err := md.Renderer().Render(&out, source, doc); err != nil {
		return nil, err
	}
	p.body = out.String()
	return p, nil
}

// links makes links to files of the tree those to their pages. A link to a file that is no
// page cannot be followed from here and stays as text.
func links(doc ast.Node, file string) {
	var all []*ast.Link
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // never fails
		if l, ok := n.(*ast.Link); ok && entering {
			all = append(all, l)
		}
		return ast.WalkContinue, nil
	})
	for _, l := range all {
		to, fragment, ok := inTree(file, string(l.Destination))
		switch at := urlOf(to); {
		case !ok:
		case at != "":
			l.Destination = []byte(at + fragment)
		default:
			parent := l.Parent()
			for child := l.FirstChild(); child != nil; {
				next := child.NextSibling()
				parent.InsertBefore(parent, l, child)
				child = next
			}
			parent.RemoveChild(parent, l)
		}
	}
}

// inTree is the file of the tree that a link of another one leads to; not ok for other links.
func inTree(from, link string) (file, fragment string, ok bool) {
	u, err := url.Parse(link)
	if err != nil || u.Scheme != "" || u.Host != "" || u.Path == "" || strings.HasPrefix(u.Path, "/") {
		return "", "", false
	}
	if u.Fragment != "" {
		fragment = "#" + u.Fragment
	}
	return path.Join(path.Dir(from), u.Path), fragment, true
}

// read takes title, summary, contents and sections from a document.
func (p *page) read(doc ast.Node, source []byte) {
	var terms []section
	names := map[string]int{}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		words := plain(n, source)
		h, ok := n.(*ast.Heading)
		if !ok || h.Level > sectionLevel {
			if n.Kind() == ast.KindParagraph && p.summary == "" {
				p.summary = sentence(words)
			}
			if n.Kind() == extast.KindTable && len(p.sections) > 0 {
				terms = append(terms, p.terms(n, source, names)...)
			} else if len(p.sections) > 0 {
				p.sections[len(p.sections)-1].text += words + " "
			}
			continue
		}
		at := section{url: p.url, page: p.title, heading: words}
		if h.Level == 1 {
			p.title, at.page = words, words
		} else {
			id, _ := h.AttributeString("id")
			name, _ := id.([]byte)
			at.url += "#" + string(name)
			if h.Level == 2 {
				p.contents = append(p.contents, heading{string(name), words})
			}
		}
		p.sections = append(p.sections, at)
	}
	p.sections = append(p.sections, terms...)
}

// terms are the rows of a table that explain a name each, with a place of its own: settings,
// errors, words of a contract. Other rows belong to the section that the table stands in.
func (p *page) terms(table ast.Node, source []byte, names map[string]int) (terms []section) {
	around := &p.sections[len(p.sections)-1]
	for row := table.FirstChild(); row != nil; row = row.NextSibling() {
		cell := row.FirstChild()
		if cell == nil || cell.FirstChild() == nil || cell.FirstChild().Kind() != ast.KindCodeSpan {
			around.text += plain(row, source) + " "
			continue
		}
		term, rest := plain(cell, source), ""
		for cell = cell.NextSibling(); cell != nil; cell = cell.NextSibling() {
			rest += plain(cell, source) + " "
		}
		id := "term-" + strings.Trim(notInAnchor.ReplaceAllString(strings.ToLower(term), "-"), "-")
		if names[id]++; names[id] > 1 {
			id += "-" + strconv.Itoa(names[id])
		}
		row.SetAttributeString("id", []byte(id))
		terms = append(terms, section{url: p.url + "#" + id, page: p.title, heading: term, text: rest})
	}
	return terms
}

// sentence is the first one of a text.
func sentence(text string) string {
	if first, _, ok := strings.Cut(text, ". "); ok {
		return first + "."
	}
	return text
}

// plain is what a reader sees of a node, without any form.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // never fails
		if !entering {
			if n.Type() == ast.TypeBlock {
				b.WriteByte(' ') // cells and items are words of their own
			}
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Segment.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.AutoLink:
			b.Write(n.Label(source))
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			b.Write(n.Lines().Value(source))
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}
