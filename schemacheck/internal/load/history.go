package load

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"fmt"
	"strings"
)

// Blob is a file as some commit had it.
type Blob struct {
	Path string // below the folder, with slashes
	ID   string // git's object id
}

// History returns the first form of each file that the commits up to HEAD have ever
// had below a folder. Whole is false where commits are missing: in a shallow clone,
// and outside a repository.
func History(ctx context.Context, dir string) (blobs []Blob, whole bool, err error) {
	out, err := git(ctx, dir, nil, "rev-parse", "--is-shallow-repository")
	if err != nil {
		return nil, false, nil //nolint:nilerr // not a repository: there is no history
	}
	whole = strings.TrimSpace(string(out)) == "false"
	if _, err := git(ctx, dir, nil, "rev-parse", "--verify", "--quiet", "HEAD"); err != nil {
		return nil, whole, nil //nolint:nilerr // no commit yet
	}
	// Oldest first, each commit's changes by itself, those of merges too.
	out, err = git(ctx, dir, nil, "log", "--reverse", "--raw", "--no-abbrev", "--no-renames", "-m", "--format=",
		"--relative", "-z", "HEAD", "--", ".")
	if err != nil {
		return nil, whole, fmt.Errorf("read the history of %s: %w", dir, err)
	}
	seen := map[string]bool{}
	parts := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(parts); i++ {
		// ":100644 100644 <old> <new> M", then the path.
		meta := strings.Fields(strings.TrimLeft(parts[i], "\n:"))
		if len(meta) != 5 {
			continue
		}
		i++
		id, path := meta[3], parts[i]
		if meta[4] == "D" || seen[path] {
			continue
		}
		seen[path] = true
		blobs = append(blobs, Blob{Path: path, ID: id})
	}
	return blobs, whole, nil
}

// BlobID returns git's object id of a content, in a repository whose ids have that
// many characters.
func BlobID(b []byte, length int) string {
	object := append(fmt.Appendf(nil, "blob %d\x00", len(b)), b...)
	if length == 2*sha256.Size {
		return fmt.Sprintf("%x", sha256.Sum256(object))
	}
	return fmt.Sprintf("%x", sha1.Sum(object))
}
