// Package logdir reads the files in which earlier releases had their event log: those of a broker in the
// process. It changes nothing in them.
//
// The broker truncated a partition at the first batch that it could not read, reused the offsets behind it, and
// started an empty log where one of its two lists was missing; it reported neither. So [Check] accepts what is
// whole, as each start of these releases did: the checksum of every batch, offsets that are contiguous over
// batches and segments, and what was recorded to be on the disk ([Mark]). Batches that can be read keep their
// offsets, and no offset of a gap is used again. The caller knows whose records are missing, and publishes them
// again. Of the files of consumer groups and producers the readable records count.
//
// Of a log that was checked the package gives what readers of committed records saw, and the consumer groups:
// the move of the log into the store reads them (package eventlog/upgrade).
//
// Concurrency: no other process may have the directory open.
package logdir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-chat/parley/server/kafka"
)

// Partition names a partition of a topic.
type Partition = kafka.Partition

// Mark says which offsets of a partition are known to be on the disk: from Start to
// below End.
type Mark struct {
	Start, End int64
	// Since is the time of the oldest record, in unix ms, if Start is not 0: older records
	// were trimmed.
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
	// Marks are what the partitions hold, gaps included, those without records left out.
	Marks map[Partition]Mark
	// Notes are lists that are missing or damaged, for people. Nothing is lost with them.
	Notes []string
	// Unreadable are the parts of the files of groups and producers that cannot be read. Their
	// contents exist in no other place; everything before and behind counts.
	Unreadable []Unreadable

	dir        string
	topics     []Topic
	partitions map[Partition]*partition
	groups     []byte // the records of groups that can be read
	ids        map[string][16]byte
}

// Topic is a topic that must be there.
type Topic struct {
	Name       string
	Partitions int32
}

// Names in the broker's directory.
const (
	partitionsDir = "partitions"
	metaFile      = "meta.json"
	topicsFile    = "topics.json"
	snapshotFile  = "snapshot.json"
	segmentSuffix = ".dat"
	indexSuffix   = ".idx" // says nothing that the segment does not
)

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
			name := Partition{Topic: t.Name, ID: id}
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
				p.first = 0 // the broker's repair removed the snapshot that says it
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
			there[Partition{Topic: topic, ID: int32(id)}] = true
		}
	}
	return there, nil
}

// segments lists the segments of a partition's directory, oldest first.
func segments(dir string) ([]*Segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []*Segment
	for _, e := range entries {
		number, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if base, err := strconv.ParseInt(number, 10, 64); ok && err == nil && base >= 0 {
			list = append(list, &Segment{Base: base})
		}
	}
	slices.SortFunc(list, func(a, b *Segment) int { return cmp.Compare(a.Base, b.Base) })
	return list, nil
}

// Sizes returns how large the segments of each partition are with their indexes, in bytes. There is nothing in a
// log that is not there yet.
func Sizes(dir string) (map[Partition]int64, error) {
	root := filepath.Join(dir, partitionsDir)
	there, err := partitionsOf(root)
	if err != nil {
		return nil, err
	}
	sizes := map[Partition]int64{}
	for p := range there {
		d := directory(root, p)
		list, err := segments(d)
		if err != nil {
			return nil, fmt.Errorf("read log: %w", err)
		}
		for _, s := range list {
			for _, suffix := range []string{segmentSuffix, indexSuffix} {
				info, err := os.Stat(s.path(d, suffix))
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return nil, fmt.Errorf("read log: %w", err)
				}
				if err == nil {
					sizes[p] += info.Size()
				}
			}
		}
	}
	return sizes, nil
}

// directory is where a partition's files are.
func directory(root string, p Partition) string {
	return filepath.Join(root, url.PathEscape(p.Topic)+"-"+strconv.Itoa(int(p.ID)))
}
