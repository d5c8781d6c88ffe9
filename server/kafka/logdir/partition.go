package logdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// partition is what the files of one hold.
type partition struct {
	name Partition
	dir  string
	segs []*Segment

	mark       Mark  // what must be there; zero if nothing is known
	start, end int64 // offsets
	since      int64 // time of the oldest batch; 0: none
	gaps       []Span
	damage     Damage
	stale      bool  // the snapshot is not of these files
	first      int64 // offset that readers see first, if the snapshot says so; 0: start
	txns       txns
}

// Segment is a file of a partition's batches as a check found it.
type Segment struct {
	Base   int64 // offset of its first batch, which names the file
	Pieces []Piece

	inTxn []byte // of each batch 1 if it stands in a transaction, for the check of the index; nil after that
	dirty bool   // it or its index cannot stay as they are
}

// Piece is a part of a segment: bytes of the file that stay, or offsets to fill.
type Piece struct {
	From, To int  // bytes; To is 0 where there are none
	Fill     Span // where To is 0
}

// Segments returns the segments of a partition, oldest first, with one that is missing if the first is. whole says
// that the broker opens them as they are; if not, it opens what a repair makes of the pieces.
func (r *Report) Segments(p Partition) (list []*Segment, whole bool) {
	part := r.partitions[p]
	if part == nil {
		return nil, true
	}
	return part.segs, !part.dirty()
}

func (s *Segment) path(dir, suffix string) string {
	return filepath.Join(dir, strconv.FormatInt(s.Base, 10)+suffix)
}

func (s *Segment) keep(from int, h batch) {
	to := from + h.size
	if n := len(s.Pieces); n > 0 && s.Pieces[n-1].To == from {
		s.Pieces[n-1].To = to
	} else {
		s.Pieces = append(s.Pieces, Piece{From: from, To: to})
	}
	inTxn := byte(0)
	if h.inTxn {
		inTxn = 1
	}
	s.inTxn = append(s.inTxn, inTxn)
}

func (s *Segment) fill(gap Span) {
	s.Pieces = append(s.Pieces, Piece{Fill: gap})
	s.dirty = true
}

// read reads all segments.
func (p *partition) read() (err error) {
	if p.segs, err = segments(p.dir); err != nil {
		return err
	}
	for i, s := range p.segs {
		b, err := os.ReadFile(s.path(p.dir, segmentSuffix))
		if err != nil {
			return err
		}
		if i == 0 {
			p.start, p.end = s.Base, s.Base
		}
		var before *Segment
		if i > 0 {
			before = p.segs[i-1]
		}
		p.walk(before, s, b)
		if err := s.checkIndex(p.dir); err != nil {
			return err
		}
	}
	p.txns.close(p.end)
	return p.checkSnapshot()
}

// walk goes through the batches of a segment. One that is whole has the offset after the
// last one's; the name of its file, if it is the first there; or, behind bytes that
// cannot be read, one that these explain. Offsets are not under the checksum.
func (p *partition) walk(before, s *Segment, b []byte) {
	lost := 0 // bytes since the last whole batch
	follows := func(offset int64, skipped int) bool {
		skipped += lost
		if skipped == 0 {
			return offset == p.end || (len(s.Pieces) == 0 && offset == s.Base && offset > p.end)
		}
		return offset >= p.end && (offset-p.end <= int64(skipped) || offset <= p.mark.End || offset == s.Base)
	}
	for at := 0; at < len(b); {
		h, whole := parse(b[at:])
		if !whole || !follows(h.from, 0) {
			p.fault(s, at, "a batch cannot be read")
			s.dirty = true
			skip := next(b[at:], follows)
			at, lost = at+skip, lost+skip
			continue
		}
		if h.from > p.end {
			p.fault(s, at, "batches are missing")
			gap := Span{p.end, h.from}
			p.gaps = append(p.gaps, gap)
			if before != nil && len(s.Pieces) == 0 && gap.From < s.Base {
				before.fill(Span{gap.From, s.Base}) // a segment begins with the offset in its name
				gap.From = s.Base
			}
			if gap.From < gap.To {
				s.fill(gap)
			}
		}
		s.keep(at, h)
		p.txns.add(h, b[at:at+h.size])
		p.end, lost = h.to, 0
		if p.since == 0 || h.time < p.since {
			p.since = h.time
		}
		at += h.size
	}
}

// fault remembers the first; at is the byte, -1 for none.
func (p *partition) fault(s *Segment, at int, what string) {
	if p.damage.What == "" {
		p.damage.What, p.damage.Where = what, s.path(p.dir, segmentSuffix)
		if at >= 0 {
			p.damage.Where += fmt.Sprintf(" at byte %d", at)
		}
	}
}

// judge compares what was found with what must be there, and makes the difference a gap.
func (p *partition) judge(known bool) {
	mark := p.mark
	p.damage.Partition, p.damage.Since = p.name, mark.Since
	if known && mark.End > mark.Start {
		if len(p.segs) == 0 {
			p.start, p.end = mark.Start, mark.Start
		}
		if p.start > mark.Start {
			p.fault(p.segs[0], -1, "a segment is missing")
			gap := Span{mark.Start, p.start}
			p.gaps = append([]Span{gap}, p.gaps...)
			p.segs = append([]*Segment{{Base: mark.Start}}, p.segs...)
			p.segs[0].fill(gap)
			p.start = mark.Start
		}
		if p.end < mark.End {
			if len(p.segs) == 0 {
				p.segs = []*Segment{{Base: mark.Start}}
			}
			last := p.segs[len(p.segs)-1]
			p.fault(last, -1, "the end is missing")
			gap := Span{p.end, mark.End}
			p.gaps = append(p.gaps, gap)
			last.fill(gap)
			p.end = mark.End
		}
	}
	if !known {
		if p.start > 0 {
			p.damage.Since = p.since
		}
		p.damage.Missing = p.gaps
		return
	}
	// Records that were never known to be on the disk may be torn or missing: no reader
	// relies on them.
	for _, gap := range p.gaps {
		if gap.To = min(gap.To, mark.End); gap.From < gap.To {
			p.damage.Missing = append(p.damage.Missing, gap)
		}
	}
	if len(p.damage.Missing) == 0 {
		p.damage.What = ""
	}
	if p.since == 0 || (mark.Since > 0 && mark.Since < p.since) {
		p.since = mark.Since
	}
}

// dirty reports whether the broker cannot open the files as they are.
func (p *partition) dirty() bool {
	return p.stale || slices.ContainsFunc(p.segs, func(s *Segment) bool { return s.dirty })
}

// The index of a segment has an entry for each batch. It begins with the version and the low byte of the
// sum of what follows, and ends with whether the batch stands in a transaction.
const indexEntry = 15

// checkIndex finds out whether the index is the segment's. Without a good one the broker would show the records of
// aborted transactions.
func (s *Segment) checkIndex(dir string) error {
	b, err := os.ReadFile(s.path(dir, indexSuffix))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	inTxn := s.inTxn
	s.inTxn = nil
	if len(b) != len(inTxn)*indexEntry {
		s.dirty = true
		return nil
	}
	for i, is := range inTxn {
		e := b[i*indexEntry:][:indexEntry]
		if byte(crc32.Checksum(e[2:], castagnoli)) != e[1] || e[indexEntry-1] != is {
			s.dirty = true
		}
	}
	return nil
}

// checkSnapshot finds out whether the broker's notes of the last orderly stop are about
// these files. Without them it reads all of them, and finds the same.
func (p *partition) checkSnapshot() error {
	b, err := os.ReadFile(filepath.Join(p.dir, snapshotFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var snap struct {
		High   int64 `json:"high_watermark"`
		Stable int64 `json:"last_stable_offset"`
		Start  int64 `json:"log_start_offset"`
	}
	err = json.Unmarshal(b, &snap)
	p.stale = err != nil || snap.High != p.end || snap.Stable != p.end || snap.Start < p.start || snap.Start > p.end
	if !p.stale {
		p.first = snap.Start
	}
	return nil // the broker made a snapshot that cannot be read again
}
