package docsite

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/deploy"
	"github.com/parley-chat/parley/server/docs"
)

// order is the navigation: pages by the last part of their URL. Documents of server/docs that
// stand in no group come behind the others.
var order = []struct {
	name  string
	pages []string
}{
	{"Begin", []string{"quickstart", "concepts", "limitations", "internet"}},
	{"Build", []string{"api", "reference", "rest", "write-a-client", "sign-in", "people", "errors", "topics",
		"search-events", "schemas"}},
	{"Operate", []string{"operate", "administration", "backup", "backup-dynamodb", "upgrade", "runbooks", "capacity",
		"events"}},
}

// tests is the document that lists what tests prove, for those who change Parley: no page.
const tests = "server/docs/requirements.md"

// entrance is what the tree begins with. Its lines to type are those of the first page here.
const entrance = "README.md"

// urlOf is the page that a file of the tree is; "" for files that are none.
func urlOf(file string) string {
	dir, name := path.Split(file)
	base, isPage := strings.CutSuffix(name, ".md")
	switch {
	case !isPage, file == tests:
		return ""
	case file == entrance:
		return "/docs/quickstart"
	case dir == "server/docs/":
		return "/docs/" + base
	case file == "server/deploy/README.md":
		return "/docs/operate"
	case file == "server/deploy/runbooks/README.md":
		return "/docs/runbooks"
	case dir == "server/deploy/":
		return "/docs/" + base
	case dir == "server/deploy/runbooks/":
		return "/docs/runbooks/" + base
	}
	return ""
}

// sources are the files of the tree that are pages, with what stands in them.
func sources() (map[string][]byte, error) {
	all := map[string][]byte{}
	for dir, files := range map[string]fs.FS{"server/docs": docs.Files, "server/deploy": deploy.Files} {
		err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
			file := path.Join(dir, name)
			if err != nil || d.IsDir() || urlOf(file) == "" {
				return err
			}
			all[file], err = fs.ReadFile(files, name)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("docsite: %w", err)
		}
	}
	return all, nil
}

// documents makes the pages of the tree's files, in order of their URLs.
func documents() ([]*page, error) {
	files, err := sources()
	if err != nil {
		return nil, err
	}
	var pages []*page
	for file, source := range files {
		p, err := renderDocument(file, source)
		if err != nil {
			return nil, fmt.Errorf("docsite: %s: %w", file, err)
		}
		pages = append(pages, p)
	}
	slices.SortFunc(pages, func(a, b *page) int { return strings.Compare(a.url, b.url) })
	return pages, nil
}

// navigation puts pages into groups. Runbooks are listed by their own page.
func navigation(pages []*page) []group {
	var nav []group
	grouped := map[*page]bool{}
	for _, g := range order {
		in := group{Name: g.name}
		for _, name := range g.pages {
			for _, p := range pages {
				if p.url == "/docs/"+name {
					in.Pages, grouped[p] = append(in.Pages, p), true
				}
			}
		}
		nav = append(nav, in)
	}
	more := group{Name: "More"}
	for _, p := range pages {
		if !grouped[p] && path.Dir(p.url) == "/docs" {
			more.Pages = append(more.Pages, p)
		}
	}
	if len(more.Pages) > 0 {
		nav = append(nav, more)
	}
	return nav
}
