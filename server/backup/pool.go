package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/backup/bucket"
)

// Keys in a pool. A list is named by the moment of its backup and by the data directory, a piece of a file by
// the data directory and its checksum:
//
//	backups/20261127T093000.000Z-1a2b3c4d.json
//	data/1a2b3c4d/9f86d081884c7d65…
const (
	listsPrefix = "backups/"
	dataPrefix  = "data/"
	listSuffix  = ".json"
)

const (
	// pieceSize is the size of an object, in bytes. A longer file is several objects: one that is cut off costs little,
	// and a file that has grown shares all but the last with the earlier backup.
	pieceSize = 16 << 20
	// transfers is how many files are read, or written, at a time.
	transfers = 4

	// An object that no list names is used by a new backup if it is younger than reusable, and removed if it is
	// older than garbage: a backup that takes less than the difference does not lose what it has found.
	reusable = 12 * time.Hour
	garbage  = 24 * time.Hour
)

// Objects stores objects by name: a place in a bucket of S3. It is safe for concurrent use.
type Objects interface {
	// Put stores an object, unless the received bytes have another checksum.
	Put(ctx context.Context, key string, body io.ReadSeeker, size int64, sum [sha256.Size]byte) error
	// Get returns an object of at most so many bytes. Errors: those of a missing one wrap fs.ErrNotExist.
	Get(ctx context.Context, key string, limit int64) ([]byte, error)
	// List calls each for every object whose key begins with a prefix, in the order of keys.
	List(ctx context.Context, prefix string, each func(bucket.Object)) error
	// Remove removes an object, which may be missing.
	Remove(ctx context.Context, key string) error
	// URL names an object in messages.
	URL(key string) string
}

// Pool has backups that share what they have in common: a list for each of them, and objects that are named by their
// content.
//
// An object is stored before a list names it. It is removed after all lists that named it: a backup removes
// the lists beyond its number at its end, and the next one the objects that no list names. So wherever a backup is cut
// off, each list that is there is complete, and the next backup uses what was stored. Each data directory has lists and
// objects of its own, so that servers may share a pool.
type Pool struct{ Objects Objects }

// openPool opens the pool of an address. key is the list that the address names, if it does.
func openPool(ctx context.Context, name string) (p Pool, key string, err error) {
	a, err := bucket.Parse(name)
	if err != nil {
		return Pool{}, "", err
	}
	if dir, base := path.Split(a.Prefix); strings.HasSuffix(base, listSuffix) {
		if dir = "/" + dir; !strings.HasSuffix(dir, "/"+listsPrefix) || !isList(base) {
			return Pool{}, "", fmt.Errorf("%s names no backup: they are in %s", name, listsPrefix)
		}
		a.Prefix, key = strings.Trim(strings.TrimSuffix(dir, listsPrefix), "/"), listsPrefix+base
	}
	b, err := bucket.Open(ctx, a, bucket.Options{})
	return Pool{Objects: b}, key, err
}

// isList reports whether a name is that of a list.
func isList(name string) bool {
	_, source := parseList(name)
	return source != ""
}

// parseList splits the name of a list.
func parseList(name string) (taken time.Time, source string) {
	moment, source, ok := strings.Cut(strings.TrimSuffix(path.Base(name), listSuffix), "-")
	taken, err := time.Parse(nameLayout, moment)
	if !ok || err != nil || !isHex(source, 4) || !strings.HasSuffix(name, listSuffix) {
		return time.Time{}, ""
	}
	return taken, source
}

func isHex(s string, bytes int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == bytes
}

// lists are the keys of the lists of a data directory, or of all for "", the oldest first.
func (p Pool) lists(ctx context.Context, source string) (keys []string, err error) {
	err = p.Objects.List(ctx, listsPrefix, func(o bucket.Object) {
		if _, of := parseList(o.Key); of != "" && (source == "" || of == source) {
			keys = append(keys, o.Key)
		}
	})
	slices.Sort(keys)
	return keys, err
}

// Find is the key of the newest backup. Which one a restore wants is not for a pool to say if it has those
// of several data directories.
func (p Pool) Find(ctx context.Context) (key string, err error) {
	keys, err := p.lists(ctx, "")
	if err != nil {
		return "", err
	}
	newest := map[string]string{} // by data directory
	for _, key := range keys {
		_, source := parseList(key)
		newest[source] = key
	}
	switch len(newest) {
	case 0:
		return "", fmt.Errorf("%w in %s", ErrNone, p.Objects.URL(""))
	case 1:
		return keys[len(keys)-1], nil
	}
	var named []string
	for _, key := range newest {
		named = append(named, p.Objects.URL(key))
	}
	slices.Sort(named)
	return "", fmt.Errorf("%s has backups of %d data directories: name one, such as %s", p.Objects.URL(""),
		len(newest), strings.Join(named[:min(len(named), 4)], " or "))
}

// list reads a list.
func (p Pool) list(ctx context.Context, key string) (*List, error) {
	b, err := p.Objects.Get(ctx, key, maxList)
	if err != nil {
		return nil, err
	}
	return decodeList(bytes.NewReader(b))
}

// pieces are the checksums of a file's pieces, which are the names of its objects.
func (l *List) pieces(f File) (sums []string, err error) {
	sums = []string{f.SHA256}
	if f.Size > l.PieceSize {
		sums = l.Pieces[f.SHA256]
	}
	bad := l.PieceSize <= 0 || l.PieceSize > maxPiece || int64(len(sums)) != pieceCount(f.Size, l.PieceSize)
	for _, sum := range sums {
		bad = bad || !isHex(sum, sha256.Size)
	}
	if bad {
		return nil, fmt.Errorf("%w: its list does not say what %.100q is made of", ErrDamaged, f.Path)
	}
	return sums, nil
}

// maxPiece bounds what a list may say of the size of pieces: several are in memory during a restore.
const maxPiece = 64 << 20

// pieceCount is how many pieces a file has: an empty one, too, has one.
func pieceCount(size, piece int64) int64 {
	if piece <= 0 {
		return 0
	}
	return max(1, (size+piece-1)/piece)
}

// Extract writes a backup's files into a directory that is not there yet, and compares each with the list.
func (p Pool) Extract(ctx context.Context, key, to string, progress Progress) error {
	list, err := p.list(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNone, err)
	}
	if err != nil {
		return err
	}
	_, source := parseList(key)
	x := &extraction{Pool: p, list: list, data: dataPrefix + source + "/", to: to}
	return x.run(ctx, progress)
}
