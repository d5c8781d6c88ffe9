package dynamo

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
	"github.com/parley-chat/parley/server/store/table"
)

// generationKey is the row of the store's generation in table meta.
var generationKey = store.Key{Table: store.Meta, PK: "generation"}

const (
	attrGeneration = "id"
	attrAncestors  = "ancestors"
)

// History is the history of the tables: one generation, and those of the store that they were imported from.
func (s *Store) History() store.History {
	return store.Descent{Line: store.Line(s.generation), Ancestors: s.ancestors}
}

// Lineage is the present generation, and those before it.
func (s *Store) Lineage() []store.Ancestor {
	own := store.Ancestor{Generation: s.generation, Last: store.Line(s.generation).Shown()}
	return append([]store.Ancestor{own}, s.ancestors...)
}

// Follow begins a generation that follows on the history of the store whose data the tables have got, and
// ends the move: from then on processes may use them. It may be repeated.
func (s *Store) Follow(ctx context.Context, of []store.Ancestor) error {
	w := generationWrite(rand.Text(), nil)
	w.Item = store.NewItem(append(w.Item, store.Attr{Name: attrAncestors, Value: store.String(store.FormatAncestors(of))})...)
	return s.Transact(ctx, store.Plan{Writes: []store.Write{w,
		{Op: store.OpDelete, Key: table.ImportKey()}, {Op: store.OpDelete, Key: table.ExportKey()}}})
}

// Generation is the random id that the store got when it was first opened or, later,
// restored.
func (s *Store) Generation() string { return s.generation }

// CurrentGeneration reads the generation that the tables have now; "" if they have none,
// or are not there. Another one than Generation says that they were replaced.
func (s *Store) CurrentGeneration(ctx context.Context, c store.Consistency) (string, error) {
	it, err := s.Get(ctx, generationKey, c)
	if errors.Is(err, wire.ErrNoTables) {
		return "", nil
	}
	return it.Get(attrGeneration).Str(), err
}

// NewGeneration gives the store another generation. It is the last step of a restore,
// while all processes are stopped: those that run keep the old one.
func (s *Store) NewGeneration(ctx context.Context) (string, error) {
	id := rand.Text()
	err := s.Transact(ctx, store.Plan{Writes: []store.Write{generationWrite(id, nil)}})
	return id, err
}

func generationWrite(id string, c store.Condition) store.Write {
	return store.Write{
		Op: store.OpPut, Key: generationKey, Cond: c, Name: "generation",
		Item: store.NewItem(store.Attr{Name: attrGeneration, Value: store.String(id)}),
	}
}

// loadGeneration reads the generation. The first process ever makes one: of several
// at once one wins.
func (s *Store) loadGeneration(ctx context.Context) (string, error) {
	for {
		it, err := s.Get(ctx, generationKey, store.Strong)
		if err != nil {
			return "", err
		}
		if it != nil {
			s.ancestors, err = store.ParseAncestors(it.Get(attrAncestors).Str())
			return it.Get(attrGeneration).Str(), err
		}
		err = s.Transact(ctx, store.Plan{Writes: []store.Write{generationWrite(rand.Text(), store.Absent())}})
		var lost *store.ConditionError
		if err != nil && !errors.As(err, &lost) && !errors.Is(err, store.ErrAmbiguous) {
			return "", err
		}
	}
}
