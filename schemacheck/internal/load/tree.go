package load

import (
	"context"
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

// A tree is what a schema is made of: .proto files and buf's configuration, by
// slash path.
type tree struct {
	name    string
	prefix  string // path of the tree in its repository, "" or "sub/"
	files   map[string][]byte
	links   map[string]string // targets of symbolic links as they are written, until they are followed
	aliases map[string]bool   // files that stand here a second time, through a link
	notes   []string
	size    int
}

func newTree(name string) *tree {
	return &tree{name: name, files: map[string][]byte{}, links: map[string]string{}, aliases: map[string]bool{}}
}

func asPathError(err error, p **os.PathError) bool { return errors.As(err, p) }

// wanted says whether a file is part of a schema, or says how to read it.
func wanted(p string) bool {
	switch path.Base(p) {
	case "buf.yaml", "buf.work.yaml", "buf.lock":
		return true
	}
	return path.Ext(p) == ".proto"
}

// skipped says whether a folder is never read: hidden ones, and packages
// that npm has put there.
func skipped(name string) bool {
	return name == "node_modules" || strings.HasPrefix(name, ".") && name != "." && name != ".."
}

func (t *tree) add(p string, b []byte) error {
	t.size += len(b)
	switch {
	case len(b) > maxFile:
		return fmt.Errorf("%s is larger than %d MiB", p, maxFile>>20)
	case t.size > maxTree:
		return fmt.Errorf("%s has more than %d MiB of .proto files", t.name, maxTree>>20)
	case len(t.files) >= maxFiles:
		return fmt.Errorf("%s has more than %d .proto files", t.name, maxFiles)
	}
	t.files[p] = b
	return nil
}

func (t *tree) protos() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.files)), func(p string) bool { return path.Ext(p) != ".proto" })
}

func dirTree(root, name string) (*tree, error) {
	t := newTree(name)
	if out, err := git(context.Background(), root, nil, "rev-parse", "--show-prefix"); err == nil {
		t.prefix = strings.TrimSpace(string(out))
	}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != root && skipped(d.Name()) {
			return fs.SkipDir
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case d.Type()&fs.ModeSymlink != 0 && p != root:
			return t.link(root, p, rel)
		case !d.Type().IsRegular() || !wanted(rel):
			return nil
		}
		return t.addFile(p, rel)
	})
	if err == nil {
		err = t.follow(func(target string) ([]byte, error) {
			return readFile(filepath.Join(root, filepath.FromSlash(target)), target)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return t, nil
}

func (t *tree) addFile(p, rel string) error {
	b, err := readFile(p, rel)
	if err != nil {
		return err
	}
	return t.add(rel, b)
}

// readFile reads a file that is not larger than files may be.
func readFile(p, rel string) ([]byte, error) {
	info, err := os.Stat(p)
	switch {
	case err != nil:
		return nil, err
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s is larger than %d MiB", rel, maxFile>>20)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", rel)
	}
	return os.ReadFile(p)
}
