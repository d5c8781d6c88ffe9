package move

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-chat/parley/server/infra/durable"
	"github.com/parley-chat/parley/server/store"
)

// Partial is the suffix of an export that has not ended.
const Partial = ".partial"

// frameBytes is about how much of the records of topics is in a frame.
const frameBytes = 1 << 20

// Step reports what was done: the section, and how many entries of it.
type Step func(section string, entries int64)

// Report says what an export or an import was of.
type Report struct {
	Header  Header
	Bytes   int64 // of the stream
	Frames  uint64
	Resumed bool // from where an earlier one was cut off
	Sums    map[string]*Sum
}

// Entries is how many rows and records there are.
func (r Report) Entries() (n int64) {
	for _, s := range r.Sums {
		n += s.Entries
	}
	return n
}

// end is the last frame.
type end struct {
	Frames   uint64          `json:"frames"`
	Files    int             `json:"files"`
	Sections map[string]*Sum `json:"sections"`
}

// exporter is an export under way.
type exporter struct {
	src     Source
	w       *writer
	counted *counter
	step    Step
	files   int
	sums    map[string]*Sum
	after   map[string]string // of sections that are not complete, where they continue
	done    map[string]bool   // sections that are complete
	buffer  []byte
}

// counter counts what is written.
type counter struct {
	to io.Writer
	n  int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.n += int64(n)
	return n, err
}

func newExporter(src Source, to io.Writer, step Step) *exporter {
	if step == nil {
		step = func(string, int64) {}
	}
	return &exporter{src: src, counted: &counter{to: to}, step: step, sums: map[string]*Sum{}, after: map[string]string{},
		done: map[string]bool{}}
}

// Stream exports to a stream, which cannot be continued.
func Stream(ctx context.Context, src Source, to io.Writer, step Step) (Report, error) {
	e := newExporter(src, to, step)
	if err := e.begin(); err != nil {
		return Report{}, err
	}
	return e.run(ctx)
}

// begin writes the first line and the header.
func (e *exporter) begin() (err error) {
	if e.w, err = newWriter(e.counted, 0); err != nil {
		return err
	}
	e.src.Header.ID, e.src.Header.Taken = rand.Text(), time.Now().UTC()
	if _, err := io.WriteString(e.counted, firstLine); err != nil {
		return err
	}
	return e.json(kindHeader, e.src.Header)
}

func (e *exporter) json(kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.w.frame(kind, b)
}

// ToFile exports to a file, which is there under its name once it is complete and on the disk. An export to
// the same name that was cut off continues where it was if the source is unchanged, and starts over if
// it is not.
func ToFile(ctx context.Context, src Source, path string, step Step) (r Report, err error) {
	if _, err := os.Stat(path); err == nil {
		return Report{}, fmt.Errorf("%s is there already", path)
	}
	f, err := os.OpenFile(path+Partial, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	e := newExporter(src, f, step)
	resumed, err := e.resume(f)
	if err == nil && !resumed {
		err = e.begin()
	}
	if err != nil {
		return Report{}, err
	}
	if r, err = e.run(ctx); err != nil {
		return Report{}, fmt.Errorf("%w; the same command continues the export", err)
	}
	r.Resumed = resumed
	if err = f.Sync(); err == nil {
		err = os.Rename(path+Partial, path)
	}
	if err == nil {
		err = durable.Dir(filepath.Dir(path))
	}
	return r, err
}

// resume reads what an earlier export has written, and cuts off what is not whole.
func (e *exporter) resume(f *os.File) (bool, error) {
	r, err := newReader(f)
	whole := int64(0)
	if err == nil {
		whole, err = e.recount(r)
	}
	switch {
	case errors.Is(err, ErrCutOff), errors.Is(err, ErrDamaged), err == nil:
	case whole == 0 && !errors.As(err, new(*fs.PathError)): // of another version, or no export: it is replaced
	default:
		return false, err
	}
	if whole == 0 {
		*e = *newExporter(e.src, f, e.step)
	}
	if err := f.Truncate(whole); err != nil {
		return false, err
	}
	if _, err := f.Seek(whole, io.SeekStart); err != nil {
		return false, err
	}
	if whole == 0 {
		return false, nil
	}
	e.counted.n = whole
	e.w, err = newWriter(e.counted, r.number)
	return true, err
}

// recount reads the frames of a stream that are whole, and returns where they end: 0 if nothing of it can
// be used.
func (e *exporter) recount(r *reader) (whole int64, err error) {
	for {
		f, err := r.next()
		if err != nil {
			return whole, err
		}
		switch {
		case f.number == 0:
			var h Header
			if f.kind != kindHeader || json.Unmarshal(f.content, &h) != nil || !h.same(e.src.Header) {
				return 0, errContent
			}
			e.src.Header = h
		case f.kind == kindFile:
			e.files++
		case f.kind == kindRows, f.kind == kindRecords:
			p, err := decodePart(f)
			if err != nil {
				return 0, err
			}
			e.add(p)
		default: // the end: the name is missing
			r.number--
			return whole, nil
		}
		whole = f.end
	}
}

// add counts a part.
func (e *exporter) add(p part) {
	s := sumOf(e.sums, p.section)
	e.buffer = p.count(s, e.buffer)
	e.after[p.section], e.done[p.section] = p.after, p.after == ""
	e.step(p.section, s.Entries)
}

func sumOf(sums map[string]*Sum, section string) *Sum {
	s := sums[section]
	if s == nil {
		s = &Sum{}
		sums[section] = s
	}
	return s
}

func (p part) count(s *Sum, buffer []byte) []byte {
	for _, r := range p.rows {
		buffer = sumRow(s, buffer, r)
	}
	for _, r := range p.records {
		sumRecord(s, r.Key, r.Value)
	}
	return buffer
}

// run writes what is not written yet.
func (e *exporter) run(ctx context.Context) (Report, error) {
	for ; e.files < len(e.src.Files); e.files++ {
		f := e.src.Files[e.files]
		if err := e.w.frame(kindFile, append(appendText(nil, f.Name), f.Content...)); err != nil {
			return Report{}, err
		}
	}
	for _, d := range store.Tables() {
		if err := e.table(ctx, d.Name); err != nil {
			return Report{}, fmt.Errorf("export %s: %w", d.Name, err)
		}
	}
	if e.src.Records != nil && !e.done[Records] {
		if err := e.records(ctx); err != nil {
			return Report{}, fmt.Errorf("export the %s: %w", Records, err)
		}
	}
	last := end{Frames: e.w.number + 1, Files: e.files, Sections: e.sums}
	if err := e.json(kindEnd, last); err != nil {
		return Report{}, err
	}
	return Report{Header: e.src.Header, Bytes: e.counted.n, Frames: last.Frames, Sums: e.sums}, nil
}

// table writes the rows of a table, a page in a frame.
func (e *exporter) table(ctx context.Context, t store.Table) error {
	for scan := (store.Scan{Table: t, Segments: 1, Cursor: e.after[string(t)]}); !e.done[string(t)]; {
		page, err := e.src.Store.Scan(ctx, scan)
		if err != nil {
			return err
		}
		p := part{section: string(t), after: page.Cursor}
		for _, r := range page.Rows {
			if Moves(r.Key) {
				p.rows = append(p.rows, r)
			}
		}
		b := p.head(nil, len(p.rows))
		for _, r := range p.rows {
			b = appendRow(b, r)
		}
		if err := e.w.frame(kindRows, b); err != nil {
			return err
		}
		e.add(p)
		scan.Cursor = page.Cursor
	}
	return nil
}

func (p part) head(b []byte, entries int) []byte {
	return binary.AppendUvarint(appendText(appendText(b, p.section), p.after), uint64(entries))
}

// records writes the records of topics.
func (e *exporter) records(ctx context.Context) error {
	after := []byte(e.after[Records])
	for {
		p, size := part{section: Records}, 0
		more := false
		err := e.src.Records(ctx, after, func(key, value []byte) bool {
			if more = size >= frameBytes || size > 0 && size+len(key)+len(value) > maxFrame/2; more {
				return false
			}
			p.records = append(p.records, store.Record{Key: bytes.Clone(key), Value: bytes.Clone(value)})
			size += len(key) + len(value)
			return true
		})
		if err != nil {
			return err
		}
		if more {
			after = p.records[len(p.records)-1].Key
			p.after = string(after)
		}
		b := p.head(make([]byte, 0, size+16*len(p.records)), len(p.records))
		for _, r := range p.records {
			b = appendText(appendText(b, string(r.Key)), string(r.Value))
		}
		if err := e.w.frame(kindRecords, b); err != nil {
			return err
		}
		e.add(p)
		if !more {
			return nil
		}
	}
}
