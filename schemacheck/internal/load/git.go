package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
)

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

// Index names what the next commit will hold, as a source of Load.
const Index = ":index"

const symlinkMode = "120000"

// gitTree reads a commit's files, or those of the index, from the objects of the
// repository around dir: those at and below dir, so that they compare with what
// stands there now. A commit without schemas is an empty tree, with a note.
func gitTree(ctx context.Context, dir, ref string) (*tree, error) {
	if strings.HasPrefix(ref, "-") {
		return nil, fmt.Errorf("%q is no git ref", ref)
	}
	prefix, err := git(ctx, dir, nil, "rev-parse", "--show-prefix")
	if err != nil {
		return nil, fmt.Errorf("%s is no directory, image or git ref: %w", ref, err)
	}
	t := newTree(ref)
	t.prefix = strings.TrimSpace(string(prefix))
	list := []string{"ls-files", "--stage", "-z"}
	if ref == Index {
		t.name = "the index"
	} else {
		id, err := commitOf(ctx, dir, ref)
		if err != nil {
			return nil, err
		}
		if id == "" {
			t.notes = append(t.notes, "there is no commit yet: everything is new")
			return t, nil
		}
		if !strings.HasPrefix(id, ref) {
			t.name = fmt.Sprintf("%s (%s)", ref, id[:12])
		}
		list = []string{"ls-tree", "-r", "-z", id}
	}
	entries, err := git(ctx, dir, nil, list...)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", t.name, err)
	}
	if err := t.addObjects(ctx, dir, ref, entries); err != nil {
		return nil, err
	}
	if len(t.protos()) == 0 {
		t.notes = append(t.notes, t.name+" has no .proto file: everything is new")
	}
	return t, nil
}

// commitOf returns the id of a ref's commit, "" for a branch that has none yet.
func commitOf(ctx context.Context, dir, ref string) (string, error) {
	id, err := git(ctx, dir, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err == nil {
		return strings.TrimSpace(string(id)), nil
	}
	if ref == "HEAD" {
		if _, err := git(ctx, dir, nil, "symbolic-ref", "--quiet", "HEAD"); err == nil {
			return "", nil
		}
	}
	return "", fmt.Errorf("%s is no directory, image or git ref here (a shallow clone lacks refs: fetch with full history)", ref)
}

// entry takes a line of git ls-tree or git ls-files apart: "<mode> blob <id>", or
// "<mode> <id> <stage>", and after a tab the path.
func entry(line string) (mode, id, p string, err error) {
	meta, p, ok := strings.Cut(line, "\t")
	parts := strings.Fields(meta)
	if !ok || len(parts) != 3 {
		return "", "", "", nil
	}
	if parts[1] == "blob" {
		return parts[0], parts[2], p, nil
	}
	if parts[2] != "0" && wanted(p) {
		return "", "", "", fmt.Errorf("%s is in conflict: resolve it first", p)
	}
	return parts[0], parts[1], p, nil
}

// addObjects reads the files and links of a list of git's.
func (t *tree) addObjects(ctx context.Context, dir, ref string, list []byte) error {
	all := map[string]string{} // id by path
	var paths, links []string
	for line := range strings.SplitSeq(string(list), "\x00") {
		mode, id, p, err := entry(line)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if id == "" || mode == "160000" {
			continue
		}
		all[p] = id
		if slices.ContainsFunc(strings.Split(path.Dir(p), "/"), skipped) {
			continue
		}
		if mode == symlinkMode {
			links = append(links, p)
		} else if wanted(p) {
			paths = append(paths, p)
		}
		if len(paths)+len(links) > maxFiles {
			return fmt.Errorf("%s has more than %d .proto files", ref, maxFiles)
		}
	}
	err := t.objects(ctx, dir, paths, all, t.add)
	if err != nil {
		return err
	}
	err = t.objects(ctx, dir, links, all, func(p string, b []byte) error { t.links[p] = string(b); return nil })
	if err != nil {
		return err
	}
	err = t.follow(func(target string) (found []byte, err error) {
		if all[target] == "" {
			return nil, fs.ErrNotExist
		}
		err = t.objects(ctx, dir, []string{target}, all, func(_ string, b []byte) error { found = b; return nil })
		return found, err
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", ref, err)
	}
	return nil
}

// objects returns the contents of files.
func (t *tree) objects(
	ctx context.Context, dir string, paths []string, ids map[string]string, to func(string, []byte) error,
) error {
	if len(paths) == 0 {
		return nil
	}
	var asked bytes.Buffer
	for _, p := range paths {
		fmt.Fprintln(&asked, ids[p])
	}
	blobs, err := git(ctx, dir, &asked, "cat-file", "--batch")
	if err != nil {
		return fmt.Errorf("read %s: %w", t.name, err)
	}
	return t.eachBlob(paths, blobs, to)
}

// eachBlob takes the answers of git cat-file --batch apart: a line with id, type
// and size, the content, and a line feed.
func (t *tree) eachBlob(paths []string, blobs []byte, to func(string, []byte) error) error {
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
		if err := to(p, b[:size]); err != nil {
			return err
		}
	}
	return nil
}
