// Package logdir checks and repairs the files of the embedded broker's log before the
// broker opens them.
//
// The broker truncates a partition at the first batch that it cannot read, reuses the
// offsets behind it, and starts an empty log where one of its two lists is missing; it
// reports neither. So this package checks first: the checksum of every batch, that offsets
// are contiguous over batches and segments, and that a partition still has what was
// recorded to be on the disk ([Mark]). Readable batches keep their offsets; a gap is filled
// with a control batch, which no reader sees, so that no offset is ever reused. The caller
// knows whose records are missing, and publishes them again. Of the files of consumer groups and
// producers the readable records are kept.
//
// Of a log that was checked the package also gives what readers of committed records see, and the consumer
// groups: the move of the log into the store reads them (package eventlog/upgrade).
//
// Concurrency: nobody else may have the directory open.
package logdir

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Partition names a partition of a topic.
type Partition struct {
	Topic string
	ID    int32
}

// String is the partition as operators know it.
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.ID) }

func (p Partition) compare(q Partition) int {
	return cmp.Or(cmp.Compare(p.Topic, q.Topic), cmp.Compare(p.ID, q.ID))
}

// Mark says which offsets of a partition are known to be on the disk: from Start to
// below End.
type Mark struct {
	Start, End int64
	// Since is the time of the oldest record, in unix ms, if Start is not 0: what is
	// older was trimmed.
	Since int64
}

// Span is offsets, the second excluded.
type Span struct{ From, To int64 }

// Damage is what is wrong with a partition.
type Damage struct {
	Partition
	// Missing are the offsets that cannot be read.
	Missing []Span
	// Since is the Mark's, or what the files say where there is no Mark.
	Since int64
	// Where and What name the first fault, for people.
	Where, What string
}

// String is the damage in one line.
func (d Damage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s (%s)", d.Partition, d.What, d.Where)
	for i, s := range d.Missing {
		if i == 3 {
			fmt.Fprintf(&b, " and %d more gaps", len(d.Missing)-i)
			break
		}
		fmt.Fprintf(&b, ", offsets %d to %d are missing", s.From, s.To-1)
	}
	return b.String()
}

// Report is what a check found.
type Report struct {
	Damage []Damage // by partition
	// Marks are what the partitions hold once they are repaired, those without records
	// left out.
	Marks map[Partition]Mark
	// Notes are lists that have to be made again, for people. Nothing is lost with them.
	Notes []string
	// Updates are what this version declares and an earlier one did not, for people: new topics
	// and other settings. Nothing was damaged.
	Updates []string
	// Unreadable are the parts of the files of groups and producers that cannot be read. What is in
	// them is in no other place; everything before and behind is kept.
	Unreadable []Unreadable

	dir        string
	topics     []Topic
	partitions map[Partition]*partition
	repair     []*partition
	unlist     []string // files to remove
	entries    []entryFile
	list       bool // the lists are to be written
	ids        map[string][16]byte
}

// Topic is a topic that must be there.
type Topic struct {
	Name       string
	Partitions int32
	Configs    map[string]string
}

// Names in the broker's directory.
const (
	partitionsDir = "partitions"
	metaFile      = "meta.json"
	topicsFile    = "topics.json"
	snapshotFile  = "snapshot.json"
	segmentSuffix = ".dat"
)

// IndexSuffix is what the names of indexes end in. They say nothing that the log beside
// them does not: Check compares them with it, and Repair makes them again.
const IndexSuffix = ".idx"

// Check reads the log without changing it. Marks hold what is known of it; nil if
// nothing is, as before the first check.
func Check(dir string, topics []Topic, marks map[Partition]Mark) (*Report, error) {
	r := &Report{dir: dir, topics: topics, Marks: map[Partition]Mark{}, partitions: map[Partition]*partition{},
		ids: map[string][16]byte{}}
	there, err := partitionsOf(filepath.Join(dir, partitionsDir))
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		for id := range t.Partitions {
			name := Partition{t.Name, id}
			mark, known := marks[name]
			p := &partition{name: name, mark: mark}
			p.dir = directory(filepath.Join(dir, partitionsDir), p.name)
			if there[p.name] {
				if err := p.read(); err != nil {
					return nil, fmt.Errorf("read log: %w", err)
				}
			}
			p.judge(known)
			if p.end > 0 {
				r.Marks[p.name] = Mark{p.start, p.end, p.since}
			}
			if d := p.damage; d.What != "" {
				r.Damage = append(r.Damage, d)
			}
			r.partitions[name] = p
			if p.dirty() {
				r.repair = append(r.repair, p)
				p.first = 0 // a repair removes the snapshot that says it
			} else {
				p.dropIndexes()
			}
		}
	}
	used := len(there) > 0 || len(marks) > 0
	if err := r.checkEntries(used); err != nil {
		return nil, err
	}
	return r, r.checkLists(used, there)
}

// partitionsOf lists the partitions that have a directory.
func partitionsOf(dir string) (map[Partition]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read log: %w", err)
	}
	there := map[Partition]bool{}
	for _, e := range entries {
		i := strings.LastIndexByte(e.Name(), '-')
		if i < 0 {
			continue
		}
		topic, err := url.PathUnescape(e.Name()[:i])
		id, err2 := strconv.ParseInt(e.Name()[i+1:], 10, 32)
		if err == nil && err2 == nil {
			there[Partition{topic, int32(id)}] = true
		}
	}
	return there, nil
}

// segments lists the segments of a partition's directory, oldest first.
func segments(dir string) ([]*segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []*segment
	for _, e := range entries {
		number, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if base, err := strconv.ParseInt(number, 10, 64); ok && err == nil && base >= 0 {
			list = append(list, &segment{base: base})
		}
	}
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Compare(a.base, b.base) })
	return list, nil
}

// Segment is a file of the log while the broker has it open.
type Segment struct {
	Partition
	Base  int64     // first offset
	Bytes int64     // with its index
	At    time.Time // written to last

	path string
}

// Segments lists the segments of all partitions. With an error it lists those of the partitions
// that it could read.
func Segments(dir string) ([]Segment, error) {
	root := filepath.Join(dir, partitionsDir)
	there, err := partitionsOf(root)
	if err != nil {
		return nil, err
	}
	var list []Segment
	var errs []error
	for p := range there {
		d := directory(root, p)
		own, err := segments(d)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, s := range own {
			path := s.path(d, segmentSuffix)
			info, err := os.Stat(path)
			if err != nil {
				continue // trimmed meanwhile
			}
			n := info.Size()
			if index, err := os.Stat(s.path(d, IndexSuffix)); err == nil {
				n += index.Size()
			}
			list = append(list, Segment{p, s.base, n, info.ModTime(), path})
		}
	}
	return list, errors.Join(errs...)
}

// FirstTime is the time of the first record, in unix ms; 0 if there is none yet.
func (s Segment) FirstTime() int64 {
	f, err := os.Open(s.path)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	var head [headSize]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(head[atFirstTime:]))
}

// directory is where a partition's files are.
func directory(root string, p Partition) string {
	return filepath.Join(root, url.PathEscape(p.Topic)+"-"+strconv.Itoa(int(p.ID)))
}
