package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A tree is what a schema is made of: .proto files and buf's configuration, by
// slash path.
type tree struct {
	name   string
	prefix string // path of the tree in its repository, "" or "sub/"
	files  map[string][]byte
	size   int
}

func asPathError(err error, p **os.PathError) bool { return errors.As(err, p) }

// wanted says whether a file is part of a schema.
func wanted(p string) bool {
	switch path.Base(p) {
	case "buf.yaml", "buf.work.yaml":
		return true
	}
	return path.Ext(p) == ".proto"
}

// skipped says whether a folder is never looked into: hidden ones, and packages
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
	t := &tree{name: name, files: map[string][]byte{}}
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
		if !d.Type().IsRegular() || !wanted(filepath.ToSlash(p)) {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && info.Size() > maxFile {
			return fmt.Errorf("%s is larger than %d MiB", rel, maxFile>>20)
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return t.add(filepath.ToSlash(rel), b)
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return t, nil
}

// git runs git in a directory. Its errors are one line.
func git(ctx context.Context, dir string, in io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	cmd.Stdin = in
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, errors.New("git is not installed")
		}
		line, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(msg.String()), "fatal: "), "\n")
		if line == "" {
			line = err.Error()
		}
		return nil, errors.New(line)
	}
	return out.Bytes(), nil
}

// gitTree reads a commit's files from the objects of the repository around dir:
// those at and below dir, so that they compare with what stands there now.
func gitTree(ctx context.Context, dir, ref string) (*tree, error) {
	if strings.HasPrefix(ref, "-") {
		return nil, fmt.Errorf("%q is no git ref", ref)
	}
	prefix, err := git(ctx, dir, nil, "rev-parse", "--show-prefix")
	if err != nil {
		return nil, fmt.Errorf("%s is no directory, image or git ref: %w", ref, err)
	}
	commit, err := git(ctx, dir, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err != nil {
		return nil, fmt.Errorf("%s is no directory, image or git ref here (a shallow clone lacks refs: fetch with full history)", ref)
	}
	id := strings.TrimSpace(string(commit))
	t := &tree{name: ref, prefix: strings.TrimSpace(string(prefix)), files: map[string][]byte{}}
	if !strings.HasPrefix(id, ref) {
		t.name = fmt.Sprintf("%s (%s)", ref, id[:12])
	}
	list, err := git(ctx, dir, nil, "ls-tree", "-r", "-z", id)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", ref, err)
	}
	var paths []string
	var objects bytes.Buffer
	for entry := range strings.SplitSeq(string(list), "\x00") {
		meta, p, ok := strings.Cut(entry, "\t")
		parts := strings.Fields(meta)
		if !ok || len(parts) != 3 || parts[1] != "blob" || parts[0] == "120000" || !wanted(p) {
			continue
		}
		if slices.ContainsFunc(strings.Split(path.Dir(p), "/"), skipped) {
			continue
		}
		if len(paths) >= maxFiles {
			return nil, fmt.Errorf("%s has more than %d .proto files", ref, maxFiles)
		}
		paths = append(paths, p)
		fmt.Fprintln(&objects, parts[2])
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no .proto file", ref)
	}
	blobs, err := git(ctx, dir, &objects, "cat-file", "--batch")
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, err)
	}
	return t, t.addBlobs(paths, blobs)
}

// addBlobs takes the answers of git cat-file --batch apart: a line with id, type
// and size, the content, and a line feed.
func (t *tree) addBlobs(paths []string, blobs []byte) error {
	r := bufio.NewReader(bytes.NewReader(blobs))
	for _, p := range paths {
		header, err := r.ReadString('\n')
		parts := strings.Fields(header)
		if err != nil || len(parts) != 3 {
			return fmt.Errorf("read %s of %s: git has lost the object", p, t.name)
		}
		size, err := strconv.Atoi(parts[2])
		if err != nil || size < 0 || size > len(blobs) {
			return fmt.Errorf("read %s of %s: git answers with no size", p, t.name)
		}
		b := make([]byte, size+1)
		if _, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("read %s of %s: %w", p, t.name, err)
		}
		if err := t.add(p, b[:size]); err != nil {
			return err
		}
	}
	return nil
}
