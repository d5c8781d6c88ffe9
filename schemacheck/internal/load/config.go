package load

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ConfigName is the file that says what a tree's schemas are judged as. It stands at
// the top of the tree, or of the repository.
const ConfigName = "schemacheck.yaml"

// Config returns that file of a source of Load, nil if there is none. An image has
// none; for it, it is that of the working directory.
func Config(ctx context.Context, source string, o Options) ([]byte, error) {
	kind, name := split(source)
	info, err := os.Stat(o.path(name))
	if kind == "git" || kind == "" && errors.Is(err, fs.ErrNotExist) {
		return gitConfig(ctx, cmp.Or(o.Git, o.Dir, "."), name)
	}
	dir := cmp.Or(o.Dir, ".")
	if err == nil && info.IsDir() {
		dir = o.path(name)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	top := dir
	if out, err := git(ctx, dir, nil, "rev-parse", "--show-cdup"); err == nil {
		top = filepath.Join(dir, strings.TrimSpace(string(out)))
	}
	for {
		b, err := readFile(filepath.Join(dir, ConfigName), ConfigName)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return b, err
		}
		if dir == top || filepath.Dir(dir) == dir {
			return nil, nil
		}
		dir = filepath.Dir(dir)
	}
}

// gitConfig reads the file from a commit or the index; refs that are none are refused
// when the schema is read.
func gitConfig(ctx context.Context, dir, ref string) ([]byte, error) {
	if strings.HasPrefix(ref, "-") {
		return nil, nil
	}
	if ref == Index {
		ref = ""
	}
	for _, where := range []string{":./", ":"} {
		if b, err := git(ctx, dir, nil, "cat-file", "blob", ref+where+ConfigName); err == nil {
			return b, nil
		}
	}
	return nil, nil
}
