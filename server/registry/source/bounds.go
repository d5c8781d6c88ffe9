package source

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/schemacheck/compile"
)

// Bounds of what is compiled. Messages nest to 31 levels at most in protoc; the rest is
// for what stands in them and in options.
const (
	maxNesting = 100
	maxPaths   = 1000 // along public imports, before they are flattened
)

// checkNesting refuses a schema that is nested too deeply, without parsing it: parsers call
// themselves for each level.
func checkNesting(text string) error {
	if b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text)); err == nil && len(b) > 0 {
		// The compiler reports text that is no descriptor either way.
		d := &descriptorpb.FileDescriptorProto{}
		limited := proto.UnmarshalOptions{RecursionLimit: maxNesting, DiscardUnknown: true}.Unmarshal(b, d)
		if limited != nil && strings.Contains(limited.Error(), "recursion") {
			return wrong("it is nested deeper than %d levels", maxNesting)
		}
		return nil
	}
	if line := lineTooDeep(text, maxNesting); line > 0 {
		return wrong("line %d: it is nested deeper than %d levels", line, maxNesting)
	}
	return nil
}

// lineTooDeep returns the line in which brackets of any kind, comments and strings aside, are
// open to more than a number of levels, 0 for none.
func lineTooDeep(text string, limit int) (line int) {
	line = 1
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\n':
			line++
		case strings.HasPrefix(text[i:], "//"):
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return 0
			}
			i += end - 1
		case strings.HasPrefix(text[i:], "/*"):
			end := strings.Index(text[i+2:], "*/")
			if end < 0 {
				return 0
			}
			line += strings.Count(text[i:i+2+end], "\n")
			i += 2 + end + 1
		case c == '"' || c == '\'':
			for i++; i < len(text) && text[i] != c && text[i] != '\n'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			if i < len(text) && text[i] == '\n' {
				line++ // the compiler says that the string has no end
			}
		case strings.IndexByte("{[(<", c) >= 0:
			if depth++; depth > limit {
				return line
			}
		case strings.IndexByte("}])>", c) >= 0:
			depth = max(depth-1, 0)
		}
	}
	return 0
}

// flatten removes public imports from what a schema imports, where compilers would
// follow too many paths along them: they follow each path again, and a ladder of 30 files
// has 2^30. Each file imports directly what it could see before; the schema itself gets such imports too,
// at its end, and their number is returned.
func flatten(text string, imports map[string]string) (string, map[string]string, int) {
	g := graph{files: map[string]*descriptorpb.FileDescriptorProto{}, ways: map[string]int{}, seen: map[string][]string{}}
	for name, source := range imports {
		if d := compile.Descriptor(source); d != nil {
			g.files[name] = d
		}
	}
	if limit := slices.Max(append(slices.Collect(maps.Values(g.count())), 0)); limit <= maxPaths {
		return text, imports, 0
	}
	out := map[string]string{}
	for name, d := range g.files {
		flattened := proto.CloneOf(d)
		flattened.PublicDependency = nil
		flattened.Dependency = append(flattened.Dependency, g.hidden(d.GetDependency())...)
		b, err := Marshal(flattened)
		if err != nil {
			return text, imports, 0
		}
		out[name] = base64.StdEncoding.EncodeToString(b)
	}
	if d := compile.Descriptor(text); d != nil {
		more := g.hidden(d.GetDependency())
		d.Dependency = append(d.Dependency, more...)
		if b, err := Marshal(d); err == nil {
			return base64.StdEncoding.EncodeToString(b), out, len(more)
		}
		return text, imports, 0
	}
	// The imports of a text are only known when it is parsed; it does not import a name
	// that it does not mention.
	var direct []string
	for _, name := range slices.Sorted(maps.Keys(g.files)) {
		if mentions(text, name) {
			direct = append(direct, name)
		}
	}
	more := g.hidden(direct)
	for _, name := range more {
		text += fmt.Sprintf("\nimport %q;", name)
	}
	return text + "\n", out, len(more)
}

// mentions says whether a text has an import's path in it as a string.
func mentions(text, name string) bool {
	return strings.Contains(text, `"`+name+`"`) || strings.Contains(text, `'`+name+`'`)
}

// graph is the public imports of a set of files.
type graph struct {
	files map[string]*descriptorpb.FileDescriptorProto
	ways  map[string]int      // along public imports from a file
	seen  map[string][]string // files that are visible through a file
}

// count returns the number of ways along public imports from each file. Imports that go
// round in a circle are for the compiler to refuse.
func (g graph) count() map[string]int {
	for name := range g.files {
		g.walk(name)
	}
	return g.ways
}

func (g graph) walk(name string) int {
	if n, ok := g.ways[name]; ok {
		return n
	}
	d := g.files[name]
	if d == nil {
		return 1
	}
	g.ways[name] = 1 // ends a circle
	n := 1
	visible := map[string]bool{}
	for _, i := range d.GetPublicDependency() {
		if int(i) >= len(d.GetDependency()) || i < 0 {
			continue
		}
		dep := d.GetDependency()[i]
		n = min(n+g.walk(dep), 2*maxPaths)
		visible[dep] = true
		for _, further := range g.seen[dep] {
			visible[further] = true
		}
	}
	g.ways[name], g.seen[name] = n, slices.Sorted(maps.Keys(visible))
	return n
}

// hidden lists what a file with these imports sees beyond them.
func (g graph) hidden(imports []string) (more []string) {
	known := map[string]bool{}
	for _, name := range imports {
		known[name] = true
	}
	for _, name := range imports {
		for _, further := range g.seen[name] {
			if !known[further] {
				known[further] = true
				more = append(more, further)
			}
		}
	}
	return more
}
