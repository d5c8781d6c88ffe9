package logdir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The broker appended what it knew of consumer groups and of producers to two files, as records
// of a length, a checksum and a JSON object. When it opened a file it stopped at the first record that
// it could not read and dropped all records behind it, which are those of other groups, too.
const (
	groupsFile = "groups.log"
	pidsFile   = "pids.log"
)

// Layout of a record: all numbers are little-endian; the length and the checksum (CRC-32C) cover
// the version and the object.
const (
	entryCRC     = 4
	entryVersion = 8
	entryObject  = 10
)

// Unreadable is a part of a file of records that cannot be read.
type Unreadable struct {
	File      string
	At, Bytes int      // position and length; Bytes is 0 if the file is missing
	Groups    []string // consumer groups whose names can still be read there
}

// String says in one line what is lost.
func (u Unreadable) String() string {
	var b strings.Builder
	if u.Bytes == 0 {
		fmt.Fprintf(&b, "%s is missing", u.File)
	} else {
		fmt.Fprintf(&b, "%s at byte %d: %d bytes cannot be read", u.File, u.At, u.Bytes)
	}
	switch {
	case u.File == pidsFile:
		b.WriteString(", the state of a producer is lost")
	case len(u.Groups) > 0:
		fmt.Fprintf(&b, ", committed offsets of %s are lost: reset them before their consumers start", strings.Join(u.Groups, ", "))
	default:
		b.WriteString(", committed offsets of consumer groups are lost: reset them before their consumers start")
	}
	return b.String()
}

// checkEntries checks the two files. A log that was used and has no file of groups has lost it: each start made an
// empty one where there was none, before the broker first opened the log.
func (r *Report) checkEntries(used bool) error {
	for _, name := range []string{groupsFile, pidsFile} {
		b, err := os.ReadFile(filepath.Join(r.dir, name))
		missing := errors.Is(err, fs.ErrNotExist)
		if err != nil && !missing {
			return fmt.Errorf("read log: %w", err)
		}
		good, lost := readEntries(name, b)
		if name == groupsFile {
			if r.groups = good; missing && used {
				lost = []Unreadable{{File: name}}
			}
		}
		r.Unreadable = append(r.Unreadable, lost...)
	}
	return nil
}

// readEntries returns the records of a file that can be read, and the parts between them.
func readEntries(name string, b []byte) (good []byte, lost []Unreadable) {
	for at := 0; at < len(b); {
		if n := entrySize(b[at:]); n > 0 {
			good, at = append(good, b[at:at+n]...), at+n
			continue
		}
		// The length may be what is wrong, so the next record is looked for at each byte.
		end := at + 1
		for end < len(b) && entrySize(b[end:]) == 0 {
			end++
		}
		lost = append(lost, Unreadable{File: name, At: at, Bytes: end - at, Groups: groupsIn(b[at:end])})
		at = end
	}
	return good, lost
}

// entrySize is the size of the record at the start of b; 0 if there is none that can be read.
func entrySize(b []byte) int {
	if len(b) <= entryObject || b[entryObject] != '{' { // most positions within a record end here
		return 0
	}
	n := uint64(binary.LittleEndian.Uint32(b)) + entryVersion
	if n <= entryObject || n > uint64(len(b)) ||
		crc32.Checksum(b[entryVersion:n], castagnoli) != binary.LittleEndian.Uint32(b[entryCRC:]) {
		return 0
	}
	return int(n)
}

// groupName finds the name of the group in a record that may be damaged elsewhere.
var groupName = regexp.MustCompile(`"g":"([^"\\]{1,249})"`)

func groupsIn(b []byte) (names []string) {
	for _, m := range groupName.FindAllSubmatch(b, -1) {
		if name := fmt.Sprintf("%q", m[1]); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
