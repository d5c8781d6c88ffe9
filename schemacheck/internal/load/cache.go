package load

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A dependency is a module of a buf.lock, in the forms of v1 and v2.
type dependency struct {
	Remote     string `yaml:"remote"`
	Owner      string `yaml:"owner"`
	Repository string `yaml:"repository"`
	Name       string `yaml:"name"`
	Commit     string `yaml:"commit"`
	Digest     string `yaml:"digest"`
}

func (d dependency) name() string {
	if d.Name != "" {
		return d.Name
	}
	return path.Join(d.Remote, d.Owner, d.Repository)
}

// folder is where buf keeps the module, below its cache.
func (d dependency) folder() (string, bool) {
	kind, _, ok := strings.Cut(d.Digest, ":")
	p := path.Join("v3/modules", kind, d.name(), strings.ReplaceAll(d.Commit, "-", ""), "files")
	return filepath.FromSlash(p), ok && d.Commit != "" && fs.ValidPath(p) && strings.HasPrefix(p, "v3/modules/")
}

// dependencies reads the modules that the tree's buf.lock files name.
func (t *tree) dependencies() ([]dependency, error) {
	var list []dependency
	for p, b := range t.files {
		if path.Base(p) != "buf.lock" {
			continue
		}
		var lock struct {
			Deps []dependency `yaml:"deps"`
		}
		if err := yaml.Unmarshal(b, &lock); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", p, t.name, err)
		}
		list = append(list, lock.Deps...)
	}
	slices.SortFunc(list, func(a, b dependency) int { return strings.Compare(a.name()+a.Commit, b.name()+b.Commit) })
	return slices.Compact(list), nil
}

// cached reads the files of the tree's dependencies from buf's cache, by import path.
// It also returns the names of the modules that are not there.
func (t *tree) cached(cache string) (map[string]string, []string, error) {
	deps, err := t.dependencies()
	if err != nil {
		return nil, nil, err
	}
	found, size := map[string]string{}, 0
	var missing []string
	for _, d := range deps {
		folder, ok := d.folder()
		if !ok || cache == "" {
			missing = append(missing, d.name())
			continue
		}
		root := filepath.Join(cache, folder)
		err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || path.Ext(p) != ".proto" {
				return err
			}
			rel, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			b, err := readFile(p, rel)
			if size += len(b); err == nil && (size > maxTree || len(found) >= maxFiles) {
				err = fmt.Errorf("modules have more than %d MiB or %d files", maxTree>>20, maxFiles)
			}
			found[filepath.ToSlash(rel)] = string(b)
			return err
		})
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, d.name())
		} else if err != nil {
			return nil, nil, fmt.Errorf("read %s from buf's cache: %w", d.name(), err)
		}
	}
	return found, missing, nil
}
