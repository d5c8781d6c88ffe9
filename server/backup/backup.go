// Package backup makes, verifies and restores copies of a data directory.
//
// A backup is a data directory and beside it the file backup.json, which lists all files with
// their sizes and checksums. It is a directory of its own within the one that holds the
// backups, or one archive (tar, zstd). Files that an earlier backup has, with the same content,
// are links to that one's: each backup is complete, and removing one harms no other. In S3, backups
// share objects in the same way (Pool).
//
// The package owns this form and the copying. It does not know what the files mean: package backend
// makes the files of one moment readable, and gives a restored store a generation of its own.
//
// Concurrency: one process writes the backups of a data directory at a time. Backups do not change,
// so any number may read them.
package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Names in a backup and in a data directory.
const (
	ListFile = "backup.json" // of a backup; of a snapshot it has no checksums
	// Unfinished is the directory within a data directory into which a backup is restored: while
	// it is there, the restore has not ended, and no server may start.
	Unfinished = "restoring"
	// Importing is the same of an import of an export, and Imported a file in it that says that only the
	// files' way to where a server finds them is left.
	Importing = "importing"
	Imported  = "imported"
	// Snapshots is the directory within a data directory that has the files of one moment
	// while a backup reads them.
	Snapshots    = "snapshot"
	lostAndFound = "lost+found"
	partial      = ".partial" // suffix of a backup that is being written
	archive      = ".tar.zst" // suffix of a backup in one file
	format       = 1
	// maxList bounds the list of files, in bytes: a store of a terabyte has some 100,000.
	maxList = 64 << 20
)

// Errors, each fit for one line.
var (
	ErrDamaged = errors.New("the backup is damaged")
	ErrNone    = errors.New("there is no backup")
	// ErrElsewhere says that a server has no data directory.
	ErrElsewhere = errors.New("the data are in DynamoDB, which makes backups of its tables itself")
	// ErrRunning says that one snapshot is there at a time.
	ErrRunning = errors.New("another backup is being made")
)

// File is a file of a backup.
type File struct {
	Path   string `json:"path"` // with slashes, below the backup
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256,omitempty"`
}

// List says what a backup has.
type List struct {
	Format  int       `json:"format"`
	Taken   time.Time `json:"taken"`    // the moment, UTC
	Host    string    `json:"host"`     // where the data directory is
	DataDir string    `json:"data_dir"` // which one
	Files   []File    `json:"files"`    // by path
	// PieceSize is the size of objects in a Pool, in bytes, and Pieces are the checksums of those of a longer file, by
	// its own. Other backups have neither.
	PieceSize int64               `json:"piece_size,omitempty"`
	Pieces    map[string][]string `json:"pieces,omitempty"`
}

// Bytes is the size of all files.
func (l *List) Bytes() (n int64) {
	for _, f := range l.Files {
		n += f.Size
	}
	return n
}

// Add adds the files that the list does not have.
func (l *List) Add(files []File) {
	had := map[string]bool{}
	for _, f := range l.Files {
		had[f.Path] = true
	}
	for _, f := range files {
		if !had[f.Path] {
			l.Files = append(l.Files, f)
		}
	}
	slices.SortFunc(l.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
}

// source names the data directory in a few letters.
func (l *List) source() string {
	sum := sha256.Sum256([]byte(l.Host + "\x00" + l.DataDir))
	return hex.EncodeToString(sum[:4])
}

// Write stores the list in a directory.
func (l *List) Write(dir string) error {
	b, err := l.encode()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, ListFile), b, 0o600)
}

func (l *List) encode() ([]byte, error) {
	b, err := json.MarshalIndent(l, "", " ")
	return append(b, '\n'), err
}

// ReadList reads the list of a backup or a snapshot, and refuses what no backup has.
func ReadList(dir string) (*List, error) {
	f, err := os.Open(filepath.Join(dir, ListFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNone, dir)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return decodeList(f)
}

func decodeList(r io.Reader) (*List, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxList+1))
	if err != nil {
		return nil, err
	}
	l := &List{}
	if err := json.Unmarshal(b, l); err != nil || len(b) > maxList {
		return nil, fmt.Errorf("%w: %s cannot be read", ErrDamaged, ListFile)
	}
	if l.Format != format {
		return nil, fmt.Errorf("the backup has format %d, this version reads %d", l.Format, format)
	}
	for _, f := range l.Files {
		if !filepath.IsLocal(filepath.FromSlash(f.Path)) || f.Size < 0 || f.Path == ListFile {
			return nil, fmt.Errorf("%w: %s names the file %.100q", ErrDamaged, ListFile, f.Path)
		}
	}
	return l, nil
}

// skipped reports whether a file or directory of a data directory is in no backup: locks, what
// the package itself makes, and what file systems have at their roots.
func skipped(path string) bool {
	switch path {
	case "LOCK", "store/LOCK", Unfinished, Importing, Imported, Snapshots, ListFile, lostAndFound:
		return true
	}
	return false
}

// Scan lists the files below a directory as they are now. A symbolic link below it is an error:
// its target would be missing.
func Scan(dir string) (list []File, err error) {
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case skipped(rel) && d.IsDir():
			return fs.SkipDir
		case d.Type()&fs.ModeSymlink != 0:
			return fmt.Errorf("%s is a symbolic link, which no backup follows: put what it leads to in its place", path)
		case skipped(rel) || !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err == nil {
			list = append(list, File{Path: rel, Size: info.Size()})
		}
		return err
	})
	slices.SortFunc(list, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return list, err
}

// Link makes the files below a directory appear below another one as they are now: as links, or
// as copies where the file system has none. Bytes that are appended to a file later are behind
// the size that the result says. The caller has stopped everything else that changes files.
func Link(from, to string) ([]File, error) {
	list, err := Scan(from)
	if err != nil {
		return nil, err
	}
	made := map[string]bool{}
	for _, f := range list {
		target := filepath.Join(to, filepath.FromSlash(f.Path))
		if dir := filepath.Dir(target); !made[dir] {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, err
			}
			made[dir] = true
		}
		if err := linkFile(filepath.Join(from, filepath.FromSlash(f.Path)), target, f.Size); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// LinkBeside does the same for the files that are in the first directory itself, unless
// the second one has them.
func LinkBeside(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || skipped(e.Name()) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		err = linkFile(filepath.Join(from, e.Name()), filepath.Join(to, e.Name()), info.Size())
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func linkFile(from, to string, size int64) error {
	err := os.Link(from, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	_, err = copyFile(to, from, size, nil) // the file system has no links
	return err
}
