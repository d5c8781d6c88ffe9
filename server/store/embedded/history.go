package embedded

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/vfs"
	logs "github.com/cockroachdb/pebble/v2/wal"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
)

// maxAncestors is how many generations a store remembers. A client that was last shown something
// before them starts over.
const maxAncestors = 1000

// ancestor is an earlier generation. The number of a commit is that of its last row in Pebble:
// numbers grow with the commits, and a store that was cut short has all up to its highest.
type ancestor = store.Ancestor

const none = -1

var _ store.History = (*Store)(nil)

// Generation implements store.History.
func (s *Store) Generation() string { return s.generation }

// Shown implements store.History: the newest commit that is on the disk. A commit counts before
// its ticket is returned, and a reader waits for the tickets before it shows what it read (Durable): so
// what was shown has no higher number.
func (s *Store) Shown() int64 { return s.shown.Load() }

// Holds implements store.History.
func (s *Store) Holds(generation string, commit int64) bool {
	if generation == s.generation {
		return commit <= s.shown.Load()
	}
	return store.HeldBy(s.ancestors, generation, commit)
}

// Dropped reports whether the store knows a generation, of which it holds nothing since Renew.
func (s *Store) Dropped(generation string) bool {
	return slices.Contains(s.ancestors, ancestor{Generation: generation, Last: none})
}

// count raises Shown to a batch that is on the disk.
func (s *Store) count(b *pebble.Batch) {
	last := int64(b.SeqNum()) + int64(b.Count()) - 1
	for {
		shown := s.shown.Load()
		if shown >= last || s.shown.CompareAndSwap(shown, last) {
			return
		}
	}
}

// loadHistory reads the generations of an open store.
func (s *Store) loadHistory() error {
	it, err := s.load(generationKey)
	if err == nil {
		s.generation, s.ancestors, err = historyFrom(it)
	}
	return err
}

// historyFrom reads the row of generations.
func historyFrom(it store.Item) (generation string, ancestors []ancestor, err error) {
	if generation = it.Get("id").Str(); generation == "" {
		return "", nil, ErrFormat
	}
	if ancestors, err = store.ParseAncestors(it.Get("ancestors").Str()); err != nil {
		return "", nil, fmt.Errorf("%w: its generations", ErrFormat)
	}
	if before := it.Get("before").Str(); ancestors == nil && before != "" { // as earlier releases renewed
		ancestors = []ancestor{{Generation: before, Last: none}}
	}
	return generation, ancestors, nil
}

// newGeneration makes the id of a generation and the row that has it with those before.
func newGeneration(ancestors []ancestor) (id string, row store.Item, err error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", nil, err
	}
	id = hex.EncodeToString(b[:])
	attrs := []store.Attr{{Name: "id", Value: store.String(id)}}
	if len(ancestors) > 0 {
		attrs = append([]store.Attr{{Name: "ancestors", Value: store.String(store.FormatAncestors(ancestors))},
			{Name: "before", Value: store.String(ancestors[0].Generation)}}, attrs...)
	}
	return id, store.NewItem(attrs...), nil
}

// dropped is what a generation that follows on nothing remembers.
func dropped(generation string, ancestors []ancestor, more ...string) []ancestor {
	all := []ancestor{{Generation: generation, Last: none}}
	for _, name := range more {
		all = append(all, ancestor{Generation: name, Last: none})
	}
	for _, a := range ancestors {
		all = append(all, ancestor{Generation: a.Generation, Last: none})
	}
	return all[:min(len(all), maxAncestors)]
}

// Lineage is the present generation with the last commit of it that a store has which is open for reading
// only, and those before it.
func (s *Store) Lineage() ([]store.Ancestor, error) {
	logged, err := lastLogged(s.opts.FS, s.opts.FS.PathJoin(s.opts.Dir, "store"))
	if err != nil {
		return nil, plain(err)
	}
	probed, err := s.lastProbed()
	if err != nil {
		return nil, plain(err)
	}
	return append([]ancestor{{Generation: s.generation, Last: max(logged, probed)}}, s.ancestors...), nil
}

// Follow begins a generation that follows on the history of another store, whose data this one has got. It
// must be called before Generation, and may be repeated.
func (s *Store) Follow(of []store.Ancestor) error {
	if len(of) == 0 || slices.Contains(s.ancestors, of[0]) {
		return nil
	}
	own := ancestor{Generation: s.generation, Last: s.shown.Load()} // by which SEAL recognises the store
	return s.generate(append([]ancestor{own}, of...))
}

// proceed begins a generation that follows on what the store has: up to the last commit in its
// logs, or on the last probe. Any other commit, which exists because the store is an older copy
// or was cut short, has a higher number.
func (s *Store) proceed(logged int64) error {
	probed, err := s.lastProbed()
	if err != nil {
		return err
	}
	last := max(logged, probed)
	s.shown.Store(last)
	return s.generate(append([]ancestor{{Generation: s.generation, Last: last}}, s.ancestors...))
}

// lastLogged is the number of the last commit that the logs of a store have, which is not open yet:
// Pebble removes them. There is none if Pebble had just begun a log. The number that Pebble itself
// continues with says less: it may be that of a commit that had a number and was in no log yet when
// the files were copied.
func lastLogged(fs vfs.FS, dir string) (last int64, err error) {
	found, err := logs.Scan(logs.Dir{FS: fs, Dirname: dir})
	if err != nil {
		return 0, err
	}
	for _, log := range found {
		records := log.OpenForRead()
		for {
			record, _, err := records.NextRecord()
			if err != nil {
				break // the end; whether it is the right one is Pebble's to say
			}
			var header [batchrepr.HeaderLen]byte
			if _, err = io.ReadFull(record, header[:]); err == nil {
				_, err = io.Copy(io.Discard, record)
			}
			if err != nil {
				break
			}
			h, _ := batchrepr.ReadHeader(header[:])
			last = max(last, int64(h.SeqNum)+int64(h.Count)-1)
		}
		if err := records.Close(); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// lastProbed is what the last probe says.
func (s *Store) lastProbed() (last int64, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceProbe}, UpperBound: []byte{spaceProbe + 1}})
	if err != nil {
		return 0, err
	}
	if it.Last() && len(it.Value()) == 8 {
		last = int64(binary.BigEndian.Uint64(it.Value()))
	}
	return last, it.Close()
}

// Renew begins a generation that follows on nothing, because data is missing or was changed:
// clients drop their state and synchronise from the start. It must be called before Generation.
// later are generations that the store has lost: it drops them like its own.
func (s *Store) Renew(later ...string) error {
	return s.generate(dropped(s.generation, s.ancestors, later...))
}

// generate begins a generation. SEAL follows the store: after a crash between the two it has the
// generation before, which the store remembers.
func (s *Store) generate(ancestors []ancestor) error {
	s.sealing.Lock()
	defer s.sealing.Unlock()
	ancestors = ancestors[:min(len(ancestors), maxAncestors)]
	id, row, err := newGeneration(ancestors)
	if err != nil {
		return err
	}
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }()
	err = b.Set(generationKey, itemcodec.Append(nil, row), nil)
	if ancestors[0].Last == none { // missing probes are reported once
		err = errors.Join(err, b.DeleteRange([]byte{spaceProbe}, []byte{spaceProbe + 1}, nil))
		s.probes = 0
	}
	if err == nil {
		err = s.db.Apply(b, pebble.Sync)
	}
	if err != nil {
		return translate(err)
	}
	s.generation, s.ancestors = id, ancestors
	s.count(b)
	return s.writeSeal()
}
