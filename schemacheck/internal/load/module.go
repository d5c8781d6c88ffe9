package load

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/parley-chat/parley/schemacheck/compile"
)

// A module is a folder that import paths start from.
type module struct {
	root     string // "" is the tree itself
	includes []string
	excludes []string
}

func (m module) has(p string) bool {
	if !below(m.root, p) {
		return false
	}
	for _, x := range m.excludes {
		if below(x, p) {
			return false
		}
	}
	return len(m.includes) == 0 || slices.ContainsFunc(m.includes, func(in string) bool { return below(in, p) })
}

func below(folder, p string) bool {
	return folder == "" || p == folder || strings.HasPrefix(p, folder+"/")
}

// importPath returns the path under which a file of the module is imported.
func (m module) importPath(p string) string {
	if m.root == "" {
		return p
	}
	return strings.TrimPrefix(p, m.root+"/")
}

// config is what matters here of buf.yaml and buf.work.yaml, in all versions.
type config struct {
	Version     string   `yaml:"version"`
	Directories []string `yaml:"directories"` // buf.work.yaml
	Build       struct {
		Roots    []string `yaml:"roots"` // v1beta1
		Excludes []string `yaml:"excludes"`
	} `yaml:"build"`
	Modules []struct {
		Path     string   `yaml:"path"`
		Includes []string `yaml:"includes"`
		Excludes []string `yaml:"excludes"`
	} `yaml:"modules"`
}

func clean(parts ...string) (string, error) {
	p := path.Join(parts...)
	if p == ".." || strings.HasPrefix(p, "../") || path.IsAbs(p) {
		return "", fmt.Errorf("path %q leaves the repository", p)
	}
	if p == "." {
		return "", nil
	}
	return p, nil
}

func cleanAll(base string, paths []string) (list []string, err error) {
	for _, p := range paths {
		c, err := clean(base, p)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// modules returns the modules that buf's configuration declares, none without it.
// A workspace at the root rules; otherwise each buf.yaml is a module of its own.
func (t *tree) modules() ([]module, error) {
	var list []module
	roots := []string{"buf.yaml", "buf.work.yaml"}
	if t.files[roots[0]] == nil && t.files[roots[1]] == nil {
		for _, p := range slices.Sorted(maps.Keys(t.files)) {
			if path.Base(p) == "buf.yaml" {
				roots = append(roots, p)
			}
		}
	}
	for i := 0; i < len(roots); i++ {
		b := t.files[roots[i]]
		if b == nil {
			continue
		}
		var c config
		if err := yaml.Unmarshal(b, &c); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", roots[i], t.name, err)
		}
		for _, d := range c.Directories {
			p, err := clean(path.Dir(roots[i]), d, "buf.yaml")
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w", roots[i], t.name, err)
			}
			if t.files[p] != nil && !slices.Contains(roots, p) {
				roots = append(roots, p)
			} else if t.files[p] == nil {
				list = append(list, module{root: strings.TrimSuffix(strings.TrimSuffix(p, "buf.yaml"), "/")})
			}
		}
		if path.Base(roots[i]) != "buf.yaml" {
			continue
		}
		more, err := c.modules(path.Dir(roots[i]))
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", roots[i], t.name, err)
		}
		list = append(list, more...)
	}
	return list, nil
}

func (c config) modules(dir string) ([]module, error) {
	base, err := clean(dir)
	if err != nil {
		return nil, err
	}
	excludes, err := cleanAll(base, c.Build.Excludes)
	if err != nil {
		return nil, err
	}
	var list []module
	for _, m := range c.Modules {
		one := module{}
		if one.root, err = clean(base, m.Path); err != nil {
			return nil, err
		}
		if one.includes, err = cleanAll(base, m.Includes); err != nil {
			return nil, err
		}
		if one.excludes, err = cleanAll(base, m.Excludes); err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	for _, r := range c.Build.Roots {
		root, err := clean(base, r)
		if err != nil {
			return nil, err
		}
		list = append(list, module{root: root, excludes: excludes})
	}
	if len(list) == 0 {
		list = append(list, module{root: base, excludes: excludes})
	}
	return list, nil
}

var (
	importLine  = regexp.MustCompile(`(?m)^\s*import\s+(?:public\s+|weak\s+|option\s+)?["\']([^"\'\n]+)["\']`)
	packageLine = regexp.MustCompile(`(?m)^\s*package\s+([A-Za-z_][\w.]*)\s*;`)
)

// guess finds the folders that imports start from where no buf.yaml says it: those
// that make imports resolve, then those whose rest is the file's package.
func (t *tree) guess() []module {
	all := t.protos()
	roots := map[string]bool{"": true}
	for _, p := range all {
		for _, m := range importLine.FindAllSubmatch(t.files[p], -1) {
			name := string(m[1])
			if t.files[name] != nil || compile.BuiltIn(name) != nil {
				continue
			}
			for _, q := range all {
				if strings.HasSuffix(q, "/"+name) {
					roots[strings.TrimSuffix(q, "/"+name)] = true
				}
			}
		}
		if m := packageLine.FindSubmatch(t.files[p]); m != nil {
			folder := strings.ReplaceAll(string(m[1]), ".", "/")
			if root, ok := strings.CutSuffix(path.Dir(p), "/"+folder); ok {
				roots[root] = true
			}
		}
	}
	var list []module
	for _, r := range slices.Sorted(maps.Keys(roots)) {
		list = append(list, module{root: r})
	}
	return list
}

// importPaths returns each file's path in the tree by import path.
func (t *tree) importPaths() (map[string]string, error) {
	list, err := t.modules()
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		list = t.guess()
	}
	// The deepest folder that holds a file is the one it is imported from.
	slices.SortStableFunc(list, func(a, b module) int { return len(b.root) - len(a.root) })
	found := map[string]string{}
	for _, p := range t.protos() {
		i := slices.IndexFunc(list, func(m module) bool { return m.has(p) })
		if i < 0 {
			continue
		}
		name := list[i].importPath(p)
		if other, twice := found[name]; twice && string(t.files[other]) != string(t.files[p]) {
			return nil, fmt.Errorf("%s: %s and %s are both imported as %q", t.name, other, p, name)
		} else if !twice {
			found[name] = p
		}
	}
	return found, nil
}
