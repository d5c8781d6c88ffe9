package dynamo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
	"github.com/parley-chat/parley/server/store/table"
)

// Line says which line of history the tables have, and how far it is.
type Line struct {
	// Generation is the random id that the tables got when they were first opened, or when a
	// restore was reported.
	Generation string
	// Heartbeats grows once a minute while processes run. Tables that have fewer than a process has
	// read before are an older copy.
	Heartbeats int64
	at         int64 // unix ms of the last heartbeat
	// ancestors are the generations of the store that the tables were imported from, the newest first.
	ancestors []store.Ancestor
	// marked are the tables that have a mark.
	marked []string
	stored store.Item // nil: the tables have no row of a generation
}

// generationKey is the row of the line in table meta.
var generationKey = store.Key{Table: store.Meta, PK: "generation"}

// Attributes of that row. Marks have those of the heartbeats.
const (
	attrGeneration  = "id"
	attrAncestors   = "ancestors"
	attrHeartbeats  = "beat"
	attrHeartbeatAt = "at"
	attrMarked      = "marked"
)

// markPart is the key of the mark that each other table has: a row with the heartbeats. It begins with a
// character that no key of a row has. All marks are written in one plan with the row of the line,
// so that copies of the tables show whether they are of one moment.
const markPart = "\x01mark"

// maxSkew is by how many heartbeats the tables of one copy may differ. A copy of each table is made
// by itself, so that a plan may be in some of them only.
const maxSkew = 1

// ErrMixed says that the tables are not of one moment.
var ErrMixed = errors.New("the tables are not of one moment: restore all of them to the same second")

func markKey(d store.Def) store.Key {
	k := store.Key{Table: d.Name, PK: markPart}
	if d.SortKey {
		k.SK = markPart
	}
	return k
}

// isMark reports whether an item of a table is its mark.
func isMark(m attributes, sc *schema) bool {
	pk, ok := m[sc.pk].(*types.AttributeValueMemberS)
	return ok && pk.Value == markPart
}

// markedTables are the tables that get a mark: all but meta, which has the row of the line.
func markedTables() []store.Def {
	return slices.DeleteFunc(store.Tables(), func(d store.Def) bool { return d.Name == store.Meta })
}

// Generation is the generation that the tables had when the store was opened.
func (s *Store) Generation() string { return s.line.Generation }

// History is the history of the tables: one generation, and those of the store that they were imported from.
func (s *Store) History() store.History {
	return store.Descent{Line: store.Line(s.line.Generation), Ancestors: s.line.ancestors}
}

// Lineage is the generation that the tables had when the store was opened, and those before it.
func (s *Store) Lineage() []store.Ancestor {
	own := store.Ancestor{Generation: s.line.Generation, Last: store.Line(s.line.Generation).Shown()}
	return append([]store.Ancestor{own}, s.line.ancestors...)
}

// FollowsOn reports whether the line follows on a generation that another store had.
func (l Line) FollowsOn(generation string) bool { return store.HeldBy(l.ancestors, generation, 0) }

// Opened is the line that the tables had when the store was opened.
func (s *Store) Opened() Line { return s.line }

// Line reads the line that the tables have now. It has no generation if they have none, or are not
// there.
func (s *Store) Line(ctx context.Context, c store.Consistency) (Line, error) {
	it, err := s.Get(ctx, generationKey, c)
	if errors.Is(err, wire.ErrNoTables) {
		return Line{}, nil
	}
	if err != nil {
		return Line{}, err
	}
	ancestors, err := store.ParseAncestors(it.Get(attrAncestors).Str())
	return Line{Generation: it.Get(attrGeneration).Str(), Heartbeats: it.Get(attrHeartbeats).Int64(),
		at:        it.Get(attrHeartbeatAt).Int64(),
		ancestors: ancestors, marked: it.Get(attrMarked).Strings(), stored: it}, err
}

// RecordHeartbeat records that the tables are in use: it adds a heartbeat to a line that was read, in
// all tables at once. Of several processes one succeeds; the others get ErrConflict or a
// store.ConditionError. It returns ErrMixed if a table was exchanged since the last heartbeat.
func (s *Store) RecordHeartbeat(ctx context.Context, from Line) (Line, error) {
	marks, err := s.checkedMarks(ctx, from)
	if err != nil {
		return from, err
	}
	next := from
	next.Heartbeats++
	return next, s.put(ctx, &next, marks)
}

// Begin begins another line of history under a new generation: the last step of a restore, while no
// process runs. It has more heartbeats than the tables and than processes have seen. It follows on
// nothing.
func (s *Store) Begin(ctx context.Context, generation string, seen int64) (Line, error) {
	return s.newLine(ctx, generation, nil, seen)
}

// Follow begins a generation that follows on the history of the store whose data the tables have got,
// and ends the move: from then on processes may use them. It may be repeated.
func (s *Store) Follow(ctx context.Context, of []store.Ancestor) error {
	_, err := s.newLine(ctx, rand.Text(), of, 0, store.Write{Op: store.OpDelete, Key: table.ImportKey()},
		store.Write{Op: store.OpDelete, Key: table.ExportKey()})
	return err
}

// newLine begins a generation, together with more writes.
func (s *Store) newLine(
	ctx context.Context, generation string, of []store.Ancestor, seen int64, more ...store.Write,
) (Line, error) {
	now, err := s.Line(ctx, store.Strong)
	if err != nil {
		return now, err
	}
	marks, err := s.checkedMarks(ctx, now)
	if err != nil {
		return now, err
	}
	now.Generation, now.ancestors, now.Heartbeats = generation, of, max(now.Heartbeats, seen)+1
	return now, s.put(ctx, &now, marks, more...)
}

// checkedMarks reads the marks of tables that are of one moment with a line. It returns
// store.ErrConflict if the line is not the present one.
func (s *Store) checkedMarks(ctx context.Context, line Line) ([]store.Item, error) {
	marks, err := s.marks(ctx)
	if err == nil {
		err = s.compare(line, marks)
	}
	if !errors.Is(err, ErrMixed) {
		return marks, err
	}
	// The line was read before the marks: other processes may have raised both in between.
	now, again := s.Line(ctx, store.Strong)
	if again == nil && (now.Generation != line.Generation || now.Heartbeats != line.Heartbeats) {
		return nil, fmt.Errorf("%w: another process recorded a heartbeat meanwhile", store.ErrConflict)
	}
	return nil, err
}

// marks reads the marks, in the order of markedTables.
func (s *Store) marks(ctx context.Context) ([]store.Item, error) {
	var keys []store.Key
	for _, d := range markedTables() {
		keys = append(keys, markKey(d))
	}
	return s.BatchGet(ctx, keys, store.Strong)
}

// put writes a line and all marks, and more, unless a mark or the line has changed since it was read.
func (s *Store) put(ctx context.Context, line *Line, was []store.Item, more ...store.Write) error {
	line.at, line.marked = s.opts.Clock().UnixMilli(), nil
	heartbeat := []store.Attr{{Name: attrHeartbeatAt, Value: store.Int(line.at)},
		{Name: attrHeartbeats, Value: store.Int(line.Heartbeats)}}
	p := store.Plan{Writes: more}
	for i, d := range markedTables() {
		cond := store.Absent()
		if was[i] != nil {
			cond = store.Exists().Eq(attrHeartbeats, was[i].Get(attrHeartbeats))
		}
		p.Writes = append(p.Writes, store.Write{Op: store.OpPut, Key: markKey(d), Cond: cond, Name: "mark",
			Item: store.NewItem(heartbeat...)})
		line.marked = append(line.marked, string(d.Name))
	}
	cond := store.Absent()
	if old := line.stored; old != nil {
		cond = store.Exists().Eq(attrGeneration, old.Get(attrGeneration))
		if old.Get(attrHeartbeats).Int64() == 0 {
			cond = cond.Without(attrHeartbeats)
		} else {
			cond = cond.Eq(attrHeartbeats, old.Get(attrHeartbeats))
		}
	}
	attrs := append(heartbeat[:2:2], store.Attr{Name: attrGeneration, Value: store.String(line.Generation)},
		store.Attr{Name: attrMarked, Value: store.List(line.marked)})
	if len(line.ancestors) > 0 {
		attrs = append(attrs, store.Attr{Name: attrAncestors, Value: store.String(store.FormatAncestors(line.ancestors))})
	}
	line.stored = store.NewItem(attrs...)
	p.Writes = append(p.Writes, store.Write{Op: store.OpPut, Key: generationKey, Cond: cond, Name: "generation",
		Item: line.stored})
	return s.Transact(ctx, p)
}

// maxNamed bounds the tables that an error names.
const maxNamed = 4

// compare returns ErrMixed, with the tables and by how much they are older or newer than table meta,
// if they are not of one moment. Marks are in the order of markedTables.
func (s *Store) compare(line Line, marks []store.Item) error {
	var wrong []string
	say := func(d store.Def, format string, args ...any) {
		wrong = append(wrong, s.schemas[d.Name].name+" "+fmt.Sprintf(format, args...))
	}
	for i, d := range markedTables() {
		mark := marks[i]
		switch heartbeats := mark.Get(attrHeartbeats).Int64(); {
		case mark == nil && slices.Contains(line.marked, string(d.Name)):
			say(d, "was emptied")
		case mark == nil: // a release has added the table, or there was no heartbeat yet
		case line.stored == nil:
			say(d, "is in use, and %s has no generation", s.schemas[store.Meta].name)
		case heartbeats < line.Heartbeats-maxSkew:
			say(d, "is %v older than %s", between(mark.Get(attrHeartbeatAt).Int64(), line.at), s.schemas[store.Meta].name)
		case heartbeats > line.Heartbeats+maxSkew:
			say(d, "is %v newer than %s", between(line.at, mark.Get(attrHeartbeatAt).Int64()), s.schemas[store.Meta].name)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	if more := len(wrong) - maxNamed; more > 0 {
		wrong = append(wrong[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%w: %s", ErrMixed, strings.Join(wrong, ", "))
}

func between(from, to int64) time.Duration {
	return (time.Duration(to-from) * time.Millisecond).Round(time.Second)
}

// enterLine reads the line. The first process ever makes one: of several at once one wins.
func (s *Store) enterLine(ctx context.Context) (Line, error) {
	for {
		line, err := s.Line(ctx, store.Strong)
		if err != nil {
			return line, err
		}
		if line.stored == nil || line.Heartbeats > 0 {
			_, err := s.checkedMarks(ctx, line)
			if errors.Is(err, store.ErrConflict) {
				continue
			}
			if err != nil {
				return line, err
			}
		}
		if line.stored != nil {
			return line, nil
		}
		id := store.NewItem(store.Attr{Name: attrGeneration, Value: store.String(rand.Text())})
		err = s.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: generationKey, Cond: store.Absent(),
			Name: "generation", Item: id}}})
		var lost *store.ConditionError
		if err != nil && !errors.As(err, &lost) && !errors.Is(err, store.ErrAmbiguous) {
			return line, err
		}
	}
}
