// Package load reads protobuf schemas from where they are kept: a directory, a git
// ref, an image, or the images of a folder.
//
// It owns finding the files, their import paths and their imports. It needs
// neither protoc nor a network, and reads git objects without touching the work
// tree. It judges nothing.
//
// Concurrency: functions may run together; a Schema is read-only.
package load

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Limits of what is read.
const (
	maxFile  = 8 << 20   // bytes of a .proto file or a buf.yaml
	maxImage = 64 << 20  // bytes of an image, unpacked
	maxTree  = 256 << 20 // bytes of all files of a tree
	maxFiles = 20_000    // .proto files of a tree
)

// Schema is a set of files that belong together.
type Schema struct {
	Name  string                        // how it is called in reports, "main (1f2e3d4c5b6a)"
	Files []protoreflect.FileDescriptor // in scope, ordered by path
	Paths map[string]string             // path in the repository by import path; empty for images
	Text  map[string]string             // source by import path; empty for images

	Notes []string // what a reader should know of how it was read
}

// RepoPath returns a file's path in the repository, or its import path if it has none.
func (s *Schema) RepoPath(path string) string { return cmp.Or(s.Paths[path], path) }

// Options of Load.
type Options struct {
	Dir     string   // where relative names are resolved; "" is the working directory
	Git     string   // folder whose repository has the git refs; "" is Dir
	Cache   string   // folder of buf's cache, for modules that a buf.lock names; "" is none
	Exclude []string // patterns of paths in the repository that are read but not compared
}

// Load reads the schemas of a source, oldest first; all but a folder of images are
// one. A source is a directory, an image file, a git ref, Index, or one of these with
// "dir:", "image:" or "git:" before it, where a bare name would be ambiguous.
func Load(ctx context.Context, source string, o Options) ([]*Schema, error) {
	kind, name := split(source)
	if name == "" {
		return nil, fmt.Errorf("%q names no directory, image or git ref", source)
	}
	path := o.path(name)
	info, err := os.Stat(path)
	switch {
	case kind == "git" || kind == "" && err != nil:
		if kind == "" && !os.IsNotExist(err) {
			return nil, fmt.Errorf("read %s: %w", name, plain(err))
		}
		t, err := gitTree(ctx, cmp.Or(o.Git, o.Dir, "."), name)
		if err != nil {
			return nil, err
		}
		return one(t.compile(ctx, o))
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, plain(err))
	case info.IsDir() && kind == "image":
		return nil, fmt.Errorf("%s is a directory, not an image", name)
	case info.IsDir():
		t, err := dirTree(path, name)
		if err != nil {
			return nil, err
		}
		if len(t.protos()) == 0 {
			list, err := imagesOf(path, o.Exclude)
			if err != nil || len(list) > 0 {
				return list, err
			}
			return nil, fmt.Errorf("%s has no .proto file and no image: name the folder that your schemas are below", name)
		}
		return one(t.compile(ctx, o))
	case kind == "dir":
		return nil, fmt.Errorf("%s is not a directory", name)
	}
	return one(readImage(path, o.Exclude))
}

// split takes the kind of a source off its name; "" if it does not say it.
func split(source string) (kind, name string) {
	kind, name, found := strings.Cut(source, ":")
	switch {
	case source == Index:
		return "git", source
	case !found || !slices.Contains([]string{"dir", "image", "git"}, kind):
		return "", source
	}
	return kind, name
}

func (o Options) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(o.Dir, name)
}

func one(s *Schema, err error) ([]*Schema, error) {
	if err != nil {
		return nil, err
	}
	return []*Schema{s}, nil
}

// plain drops the operation and the path of a file error, which the caller names.
func plain(err error) error {
	var p *os.PathError
	if ok := asPathError(err, &p); ok {
		return p.Err
	}
	return err
}

// Matches says whether a path in a repository or a folder above it matches a pattern.
func Matches(patterns []string, path string) bool {
	for p := path; p != "." && p != "/" && p != ""; p = filepath.ToSlash(filepath.Dir(p)) {
		for _, pattern := range patterns {
			if ok, _ := filepath.Match(strings.TrimSuffix(pattern, "/"), p); ok {
				return true
			}
		}
	}
	return false
}
