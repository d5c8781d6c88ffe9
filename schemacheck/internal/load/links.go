package load

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// maxHops bounds how many links lead to a file, as systems do.
const maxHops = 40

var errOutside = errors.New("leads outside of what is compared")

// link records a symbolic link of a directory.
func (t *tree) link(root, p, rel string) error {
	target, err := os.Readlink(p)
	if err != nil {
		return err
	}
	if filepath.IsAbs(target) {
		abs, err := filepath.Abs(root)
		if err != nil {
			return err
		}
		in, err := filepath.Rel(abs, target)
		if err != nil || !filepath.IsLocal(in) {
			t.links[rel] = "/"
			return nil //nolint:nilerr // a target outside of the tree leads nowhere
		}
		up := strings.Repeat("../", strings.Count(rel, "/"))
		target = up + filepath.ToSlash(in)
	}
	t.links[rel] = filepath.ToSlash(target)
	return nil
}

// resolve follows the links in a path.
func (t *tree) resolve(p string) (string, error) {
	for range maxHops {
		at := ""
		for link := range t.links {
			if below(link, p) && len(link) > len(at) {
				at = link
			}
		}
		if at == "" {
			return p, nil
		}
		target := t.links[at]
		if path.IsAbs(target) {
			return "", errOutside
		}
		p = path.Join(path.Dir(at), target, strings.TrimPrefix(p, at))
		if p == ".." || strings.HasPrefix(p, "../") {
			return "", errOutside
		}
	}
	return "", errors.New("leads in a circle")
}

// follow puts what links lead to into the tree. A file that stands in the tree under its
// own name is judged there; under the name of the link it can be imported. A link to a
// schema that cannot be followed is refused, and one to a folder is listed in the notes:
// build tools leave such.
func (t *tree) follow(read func(path string) ([]byte, error)) error {
	own := slices.Sorted(maps.Keys(t.files))
	for _, link := range slices.Sorted(maps.Keys(t.links)) {
		target, err := t.resolve(link)
		if err != nil {
			if wanted(link) {
				return fmt.Errorf("%s is a symbolic link that %w", link, err)
			}
			t.notes = append(t.notes, fmt.Sprintf("%s of %s is a symbolic link that %v: what is there was not read", link,
				t.name, err))
			continue
		}
		if wanted(link) {
			if err := t.followFile(link, target, read); err != nil {
				return err
			}
			continue
		}
		for _, p := range own {
			// A link to a folder above itself holds itself.
			if p != target && below(target, p) && !below(target, link) {
				if err := t.alias(link+strings.TrimPrefix(p, target), p); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (t *tree) followFile(link, target string, read func(path string) ([]byte, error)) error {
	if t.files[target] != nil {
		return t.alias(link, target)
	}
	b, err := read(target)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is a symbolic link to %s, which is not there", link, target)
		}
		return fmt.Errorf("%s is a symbolic link: %w", link, err)
	}
	return t.add(link, b)
}

func (t *tree) alias(p, target string) error {
	t.aliases[p] = true
	return t.add(p, t.files[target])
}
