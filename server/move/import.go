package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/parley-chat/parley/server/store"
)

// reachedEvery is after how many frames an import remembers how far it is.
const reachedEvery = 32

// importer is an import under way.
type importer struct {
	to       Target
	step     Step
	progress Progress
	header   Header
	files    int
	sums     map[string]*Sum
	done     map[string]bool // sections that are complete
	taken    uint64          // so many frames are written
	buffer   []byte
}

// Import puts an export into a target that is empty, or that has a part of the same export. Every frame is
// compared with its checksum before anything of it is written, and once all are there, what was written
// is read back and compared, before the target becomes an installation. Errors: ErrDamaged and ErrCutOff of
// the stream, ErrOther and ErrDiffers of the target, and those of both.
func Import(ctx context.Context, from io.Reader, to Target, step Step) (Report, error) {
	if step == nil {
		step = func(string, int64) {}
	}
	i := &importer{to: to, step: step, sums: map[string]*Sum{}, done: map[string]bool{}}
	r, err := newReader(from)
	if err != nil {
		return Report{}, err
	}
	f, err := r.next()
	if err != nil {
		return Report{}, err
	}
	if f.kind != kindHeader || json.Unmarshal(f.content, &i.header) != nil || i.header.ID == "" ||
		len(i.header.History) == 0 {
		return Report{}, r.damaged("it is no header")
	}
	if i.progress, err = to.Begin(ctx, i.header); err != nil {
		return Report{}, err
	}
	report := Report{Header: i.header, Resumed: i.progress.Frames > 0, Sums: i.sums}
	if e := i.progress.Export; e != "" && e != i.header.ID {
		return report, ErrOther
	}
	i.progress.Export = i.header.ID
	if err := i.frames(ctx, r); err != nil {
		if i.progress.Frames = max(i.progress.Frames, i.taken); i.taken > 0 { // the next one need not write them again
			_ = to.Reached(context.WithoutCancel(ctx), i.progress)
		}
		return report, err
	}
	report.Bytes, report.Frames = r.at, r.number
	if !i.progress.Verified {
		if err := i.readBack(ctx); err != nil {
			return report, err
		}
		i.progress.Verified = true
		if err := to.Reached(ctx, i.progress); err != nil {
			return report, err
		}
	}
	return report, to.Finish(ctx, i.header)
}

// frames takes the frames in, up to the last one.
func (i *importer) frames(ctx context.Context, r *reader) error {
	for {
		f, err := r.next()
		if err != nil {
			return err
		}
		if f.kind == kindEnd {
			if err := i.compare(f); err != nil {
				return r.damaged("%v", err)
			}
			if _, err := r.from.ReadByte(); !errors.Is(err, io.EOF) {
				return r.damaged("there is something behind the last frame")
			}
			if r.number > i.progress.Frames {
				i.progress.Frames = r.number
				return i.to.Reached(ctx, i.progress)
			}
			return nil
		}
		if err := i.take(ctx, f); err != nil {
			return fmt.Errorf("frame %d: %w", f.number, err)
		}
		i.taken = r.number
		if f.number >= i.progress.Frames && r.number%reachedEvery == 0 {
			i.progress.Frames = r.number
			if err := i.to.Reached(ctx, i.progress); err != nil {
				return err
			}
		}
	}
}

// take counts a frame, and writes it unless it is there.
func (i *importer) take(ctx context.Context, f frame) error {
	there := f.number < i.progress.Frames
	switch f.kind {
	case kindFile:
		i.files++
		c := &content{b: f.content}
		file := File{Name: c.text(), Content: c.b}
		if c.err != nil || file.Name != KeyFile {
			return fmt.Errorf("%w: %w", ErrDamaged, errContent)
		}
		return i.to.File(file)
	case kindRows, kindRecords:
		p, err := decodePart(f)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		s := sumOf(i.sums, p.section)
		i.buffer = p.count(s, i.buffer)
		i.done[p.section] = p.after == ""
		i.step(p.section, s.Entries)
		switch {
		case there:
			return nil
		case len(p.rows) > 0:
			return i.to.Rows(ctx, p.rows)
		case len(p.records) > 0:
			return i.to.Records(ctx, p.records)
		}
		return nil
	}
	return fmt.Errorf("%w: its kind is %q", ErrDamaged, f.kind)
}

// compare compares what came with what the last frame says.
func (i *importer) compare(f frame) error {
	var last end
	if err := json.Unmarshal(f.content, &last); err != nil {
		return errContent
	}
	if last.Frames != f.number+1 || last.Files != i.files || len(last.Sections) != len(i.sums) {
		return fmt.Errorf("it says that there are %d frames, %d files and %d sections before it", last.Frames-1, last.Files,
			len(last.Sections))
	}
	for name, want := range last.Sections {
		switch got := i.sums[name]; {
		case got == nil || want == nil || !i.done[name]:
			return fmt.Errorf("the section %.40q is not complete", name)
		case *got != *want:
			return fmt.Errorf("%.40s has %d entries with the checksum %s, there were %d with %s", name, got.Entries, got.Hash,
				want.Entries, want.Hash)
		}
	}
	return nil
}

// readBack compares what the target has with the stream. Rows that have expired meanwhile are in
// neither sum.
func (i *importer) readBack(ctx context.Context) error {
	src, err := i.to.Written(ctx)
	if err != nil {
		return err
	}
	for _, d := range store.Tables() {
		var got Sum
		for row, err := range store.ScanAll(ctx, src.Store, store.Scan{Table: d.Name, Segments: 1}) {
			if err != nil {
				return fmt.Errorf("read %s back: %w", d.Name, err)
			}
			if Moves(row.Key) {
				i.buffer = sumRow(&got, i.buffer, row)
			}
		}
		if err := i.differs(string(d.Name), got); err != nil {
			return err
		}
	}
	if src.Records == nil {
		return nil
	}
	var got Sum
	err = src.Records(ctx, nil, func(key, value []byte) bool {
		sumRecord(&got, key, value)
		return true
	})
	if err != nil {
		return fmt.Errorf("read the %s back: %w", Records, err)
	}
	return i.differs(Records, got)
}

func (i *importer) differs(section string, got Sum) error {
	want := i.sums[section]
	if want == nil {
		want = &Sum{}
	}
	if got.Lasting != want.Lasting || got.Rest != want.Rest {
		return fmt.Errorf("%w: %s has %d lasting entries with the checksum %s, the export has %d with %s", ErrDiffers, section,
			got.Lasting, got.Rest, want.Lasting, want.Rest)
	}
	return nil
}
