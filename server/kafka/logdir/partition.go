package logdir

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// partition is what the files of one hold.
type partition struct {
	name Partition
	dir  string
	segs []*segment

	mark       Mark  // what must be there; zero if nothing is known
	start, end int64 // offsets
	since      int64 // time of the oldest batch; 0: none
	gaps       []Span
	damage     Damage
	stale      bool  // the snapshot is not of these files
	first      int64 // offset that readers see first, if the snapshot says so; 0: start
	txns       txns
}

// segment is one file of batches, and what it is to become.
type segment struct {
	base         int64
	pieces       []piece
	index        []byte // as it must be, but for fields that nobody reads
	repair       bool   // the file has to be written again
	rebuildIndex bool   // so has its index
}

// piece is a part of a segment: bytes of the file that stay, or offsets to fill.
type piece struct {
	from, to int // bytes
	fill     Span
}

func (s *segment) path(dir, suffix string) string {
	return filepath.Join(dir, strconv.FormatInt(s.base, 10)+suffix)
}

func (s *segment) keep(from int, h batch) {
	to := from + h.size
	if n := len(s.pieces); n > 0 && s.pieces[n-1].to == from {
		s.pieces[n-1].to = to
	} else {
		s.pieces = append(s.pieces, piece{from: from, to: to})
	}
	s.index = appendIndex(s.index, h)
}

func (s *segment) fill(gap Span) {
	s.pieces = append(s.pieces, piece{fill: gap})
	for b := filler(gap); len(b) > 0; {
		h, _ := parse(b)
		s.index = appendIndex(s.index, h)
		b = b[h.size:]
	}
	s.repair, s.rebuildIndex = true, true
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
			p.start, p.end = s.base, s.base
		}
		var before *segment
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
func (p *partition) walk(before, s *segment, b []byte) {
	lost := 0 // bytes since the last whole batch
	follows := func(offset int64, skipped int) bool {
		skipped += lost
		if skipped == 0 {
			return offset == p.end || (len(s.pieces) == 0 && offset == s.base && offset > p.end)
		}
		return offset >= p.end && (offset-p.end <= int64(skipped) || offset <= p.mark.End || offset == s.base)
	}
	for at := 0; at < len(b); {
		h, whole := parse(b[at:])
		if !whole || !follows(h.from, 0) {
			p.fault(s, at, "a batch cannot be read")
			s.repair, s.rebuildIndex = true, true
			skip := next(b[at:], follows)
			at, lost = at+skip, lost+skip
			continue
		}
		if h.from > p.end {
			p.fault(s, at, "batches are missing")
			gap := Span{p.end, h.from}
			p.gaps = append(p.gaps, gap)
			if before != nil && len(s.pieces) == 0 && gap.From < s.base {
				before.fill(Span{gap.From, s.base}) // a segment begins with the offset in its name
				gap.From = s.base
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
func (p *partition) fault(s *segment, at int, what string) {
	if p.damage.What == "" {
		p.damage.What, p.damage.Where = what, s.path(p.dir, segmentSuffix)
		if at >= 0 {
			p.damage.Where += fmt.Sprintf(" at byte %d", at)
		}
	}
}

// judge compares what was found with what must be there, and plans how the difference
// is filled.
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
			p.segs = append([]*segment{{base: mark.Start}}, p.segs...)
			p.segs[0].fill(gap)
			p.start = mark.Start
		}
		if p.end < mark.End {
			if len(p.segs) == 0 {
				p.segs = []*segment{{base: mark.Start}}
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
	// What was never known to be on the disk may be torn or missing: nobody relies on it.
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

func (p *partition) dirty() bool {
	for _, s := range p.segs {
		if s.repair || s.rebuildIndex {
			return true
		}
	}
	return p.stale
}

// dropIndexes frees what only a repair needs.
func (p *partition) dropIndexes() {
	for _, s := range p.segs {
		s.index = nil
	}
}

// The index of a segment has an entry for each batch: version, the low byte of its
// sum, the epoch, a time that is made again when it is read, and whether the batch
// stands in a transaction.
const (
	indexEntry   = 15
	indexVersion = 1
)

func appendIndex(b []byte, h batch) []byte {
	e := make([]byte, indexEntry)
	e[0] = indexVersion
	binary.LittleEndian.PutUint32(e[2:], 0)
	if h.inTxn {
		e[indexEntry-1] = 1
	}
	e[1] = byte(crc32.Checksum(e[2:], castagnoli))
	return append(b, e...)
}

// checkIndex finds out whether the index is the segment's. Without a good one the
// records of aborted transactions would be shown.
func (s *segment) checkIndex(dir string) error {
	b, err := os.ReadFile(s.path(dir, IndexSuffix))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(b) != len(s.index) {
		s.rebuildIndex = true
		return nil
	}
	for i := 0; i < len(b); i += indexEntry {
		e, want := b[i:i+indexEntry], s.index[i:i+indexEntry]
		if byte(crc32.Checksum(e[2:], castagnoli)) != e[1] || e[indexEntry-1] != want[indexEntry-1] {
			s.rebuildIndex = true
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
	return nil // a snapshot that cannot be read is made again
}
