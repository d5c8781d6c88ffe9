package versions

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event/eventtest"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// moving is a state with two versions of messages.persisted: an old one, and one that is
// next or current.
func moving(phase Phase) State {
	s := State{Topics: map[string][]Version{kafka.MessagesPersisted: {{Number: 1, Partitions: 64, Status: Current},
		{Number: 2, Partitions: 128, Status: Next}}}}
	s.Move = &Move{Topic: kafka.MessagesPersisted, Phase: phase}
	if phase == Switched {
		s.Topics[kafka.MessagesPersisted][0].Status, s.Topics[kafka.MessagesPersisted][1].Status = Past, Current
	}
	return s
}

// Every version puts a chat where the contract says for its number of partitions.
func TestPartitionVectors(t *testing.T) {
	for _, v := range eventtest.Vectors() {
		for _, topic := range kafka.Topics() {
			if topic.Partitions == 1 {
				continue
			}
			want, known := v.Partitions[int(topic.Partitions)]
			if at := (State{}).PartitionOf(topic.Name, v.Key); !known || at.Topic != topic.Name || int(at.ID) != want {
				t.Errorf("%.20q is in %s, not in partition %d", v.Key, at, want)
			}
		}
		if at := moving(Drained).PartitionOf(kafka.MessagesPersisted, v.Key); at.Topic != "messages.persisted" ||
			int(at.ID) != v.Partitions[64] {
			t.Errorf("%.20q is in %s before the switch", v.Key, at)
		}
		if at := moving(Switched).PartitionOf(kafka.MessagesPersisted, v.Key); at.Topic != "messages.persisted.v2" ||
			int(at.ID) != v.Partitions[128] {
			t.Errorf("%.20q is in %s after the switch", v.Key, at)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]struct {
		base   string
		number int
	}{
		"messages.persisted": {"messages.persisted", 1}, "messages.persisted.v2": {"messages.persisted", 2},
		"chats.created.v17":     {"chats.created", 17},
		"messages.persisted.v1": {}, "messages.persisted.v02": {}, "messages.persisted.v": {}, "messages.persisted.v-3": {},
		"other.v2": {}, ".v2": {}, "": {},
		"messages.persisted.v2.v2": {}, "messages.persisted.v99999999999999999999": {},
	} {
		base, number, ok := Base(name)
		if base != want.base || number != want.number || ok != (want.number > 0) {
			t.Errorf("%q is version %d of %q", name, number, base)
		}
		if ok && Name(base, number) != name {
			t.Errorf("%q becomes %q", name, Name(base, number))
		}
	}
}

// What each part of Parley sees of a migration, phase by phase.
func TestPhases(t *testing.T) {
	for phase, want := range map[Phase]struct {
		frozen   bool
		readable []string
	}{
		Planned:  {false, []string{"messages.persisted"}},
		Created:  {false, []string{"messages.persisted", "messages.persisted.v2"}},
		Frozen:   {true, []string{"messages.persisted", "messages.persisted.v2"}},
		Quiet:    {true, []string{"messages.persisted", "messages.persisted.v2"}},
		Drained:  {true, []string{"messages.persisted", "messages.persisted.v2"}},
		Switched: {false, []string{"messages.persisted", "messages.persisted.v2"}},
	} {
		s := moving(phase)
		if s.Frozen(kafka.MessagesPersisted) != want.frozen || s.Frozen(kafka.ChatsCreated) {
			t.Errorf("%s: frozen %v", phase, !want.frozen)
		}
		if have := s.Readable(kafka.MessagesPersisted); !slices.Equal(have, want.readable) {
			t.Errorf("%s: %v are read", phase, have)
		}
		if n := len(s.Required()); n != 15+len(want.readable) {
			t.Errorf("%s: %d topics are required", phase, n)
		}
		// What may be on the disk is known, whatever a crash has left.
		if n := len(s.All()); n != 17 {
			t.Errorf("%s: %d topics", phase, n)
		}
	}
	s := moving(Switched)
	s.Move, s.Topics[kafka.MessagesPersisted][0].Status = nil, Retired
	if have := s.Readable(kafka.MessagesPersisted); !slices.Equal(have, []string{"messages.persisted.v2"}) ||
		len(s.Required()) != 16 {
		t.Errorf("%v are read, %v required", have, s.Required())
	}
	// All have read what is retired, and what is read by whom is the same of each other version.
	for name, want := range map[string]int{"messages.persisted": 0, "messages.persisted.v2": 2, "chats.created": 1} {
		i := slices.IndexFunc(s.All(), func(t kafka.Topic) bool { return t.Name == name })
		if of := s.All()[i]; len(of.Readers) != want || of.Kind != kafka.Chats {
			t.Errorf("%s is read by %v, of kind %d", name, of.Readers, of.Kind)
		}
	}
}

// Of two who change the same state one succeeds; a state that nobody writes is refused.
func TestSave(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	if s, err := Load(t.Context(), st); err != nil || s.Revision != 0 ||
		s.Current(kafka.MessagesPersisted).Partitions != 64 {
		t.Fatal(s, err)
	}
	first, err := Save(t.Context(), st, moving(Planned))
	if err != nil || first.Revision != 1 {
		t.Fatal(first, err)
	}
	if _, err := Save(t.Context(), st, moving(Planned)); !errors.Is(err, ErrChanged) {
		t.Errorf("saved twice from the same: %v", err)
	}
	second := first.Clone()
	second.Move.Phase = Created
	if second, err = Save(t.Context(), st, second); err != nil || second.Revision != 2 {
		t.Fatal(second, err)
	}
	if _, err := Save(t.Context(), st, first); !errors.Is(err, ErrChanged) {
		t.Errorf("saved over a later one: %v", err)
	}
	have, err := Load(t.Context(), st)
	if err != nil || have.Revision != 2 || have.Move.Phase != Created ||
		have.Current(kafka.MessagesPersisted).Number != 1 {
		t.Errorf("%+v %v", have, err)
	}
	for _, bad := range []State{
		{Topics: map[string][]Version{"other": {{Number: 1, Partitions: 8, Status: Current}}}},
		{Topics: map[string][]Version{kafka.MessagesPersisted: {{Number: 2, Partitions: 8, Status: Current}}}},
		{Topics: map[string][]Version{kafka.MessagesPersisted: {{Number: 1, Partitions: 0, Status: Current}}}},
		{Topics: map[string][]Version{kafka.MessagesPersisted: {{Number: 1, Partitions: 64, Status: Past}}}},
	} {
		bad.Revision = 2
		if _, err := Save(t.Context(), st, bad); err == nil {
			t.Errorf("%+v is written", bad)
		}
	}
	if err := st.BatchWrite(t.Context(), []store.Write{{
		Op: store.OpPut, Key: table.TopicsKey(),
		Item: store.NewItem(store.Attr{Name: table.AttrTopics, Value: store.String("{")}),
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(t.Context(), st); err == nil {
		t.Error("half a state is read")
	}
}

// Commands without a store look after what the cluster has: later versions are kept in
// order, and an old one that was deleted is not made again.
func TestFound(t *testing.T) {
	names := func(have map[string]int32) (out []string) {
		for _, t := range found(have) {
			out = append(out, t.Name)
		}
		return out
	}
	rest := []string{"memberships.changed", "chats.created", "dead_letters"}
	for _, name := range kafka.SearchTopics {
		rest = append(rest, name, name+".dlq")
	}
	for _, c := range []struct {
		have map[string]int32
		want []string
	}{
		{nil, []string{"messages.persisted"}},
		{map[string]int32{"messages.persisted": 64, "messages.persisted.v2": 128, "messages.persisted.x": 1},
			[]string{"messages.persisted", "messages.persisted.v2"}},
		{map[string]int32{"messages.persisted.v2": 128}, []string{"messages.persisted.v2"}},
	} {
		if have := names(c.have); !slices.Equal(have, append(c.want, rest...)) {
			t.Errorf("of %v: %v", c.have, have)
		}
	}
}
