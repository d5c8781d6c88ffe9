package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// counted is a store that counts reads of the registry, and can be away.
type counted struct {
	store.Store
	reads atomic.Int64
	away  atomic.Bool
	hold  chan struct{} // if not nil, reads wait until it is closed
}

func (c *counted) Query(ctx context.Context, q store.Query) (store.Page, error) {
	c.reads.Add(1)
	if c.hold != nil {
		<-c.hold
	}
	if c.away.Load() {
		return store.Page{}, store.ErrUnavailable
	}
	return c.Store.Query(ctx, q)
}

func schemas(t testing.TB) (*Schemas, *counted) {
	t.Helper()
	st := &counted{Store: storetest.NewMemory(time.Now)}
	return New(registry.New(st), 1), st
}

// register registers a text and returns its id.
func register(t testing.TB, s *Schemas, subject, text string) int32 {
	t.Helper()
	v, err := s.registry.Register(t.Context(), subject, registry.Schema{Text: text}, registry.RegisterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return int32(v.ID)
}

func refusedAs(t testing.TB, err error, reason refusal.Reason, text string) {
	t.Helper()
	if !errors.Is(err, &refusal.Error{Reason: reason}) || !strings.Contains(err.Error(), text) {
		t.Errorf("%v, want %s with %q", err, reason, text)
	}
}

func payloads(list ...[]byte) (messages []*topicv1.TopicMessage) {
	for _, b := range list {
		messages = append(messages, &topicv1.TopicMessage{Payload: b})
	}
	return messages
}

// A schema is compiled once, also if many ask for it at the same time, and again once others have
// taken its room in the cache: it keeps its bounds however many schemas are in use.
func TestCache(t *testing.T) {
	s, st := schemas(t)
	const n, bound = 20, 5
	s.bounds = bounds{schemas: bound, bytes: 1 << 20}
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = register(t, s, fmt.Sprint("s", i), fmt.Sprintf("syntax = \"proto3\";\nmessage M%d { string a = 1; }\n", i))
	}
	use := func(i int) {
		t.Helper()
		of := &topicv1.TopicSchema{Id: ids[i], Message: fmt.Sprint("M", i)}
		if err := s.Check(t.Context(), of, payloads(field(1, "x"))); err != nil {
			t.Error(err)
		}
		refusedAs(t, s.Check(t.Context(), of, payloads(field(1, "x"), field(2, "x"))), refusal.SchemaMismatch, "messages[1]")
	}
	st.reads.Store(0)
	for range 3 {
		use(0)
	}
	if got := st.reads.Load(); got != 1 {
		t.Errorf("%d reads of one schema, want 1", got)
	}
	for range 3 {
		for i := range ids {
			use(i)
			use(0) // stays: it was used last but one
			if len(s.cache) > bound {
				t.Fatalf("%d schemas are kept, more than %d", len(s.cache), bound)
			}
		}
	}
	if got := st.reads.Load(); got != 1+3*(n-1) {
		t.Errorf("%d reads, want one of the first and each other one three times", got)
	}

	one := s.cache[key{ids[0], "M0"}].size
	s = New(s.registry, 1)
	s.bounds = bounds{schemas: 1000, bytes: 2*one + one/2}
	for i := range ids {
		use(i)
		total := 0
		for _, c := range s.cache {
			total += c.size
		}
		if s.bytes != total || total > s.bounds.bytes || i > 0 && len(s.cache) != 2 {
			t.Fatalf("%d bytes are counted, %d kept of %d schemas, %d allowed", s.bytes, total, len(s.cache), s.bounds.bytes)
		}
	}
	s.bounds.bytes = 1
	if use(0); len(s.cache) != 1 {
		t.Errorf("%d schemas are kept, want the one that is larger than the bound", len(s.cache))
	}
}

// Requests that need the same schema at the same time wait for one compilation. One that gives up does
// not end it for the others.
func TestOneCompilation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, st := schemas(t)
		id := register(t, s, "s", plainText)
		st.hold = make(chan struct{})
		st.reads.Store(0)
		of := &topicv1.TopicSchema{Id: id, Message: "t.v1.Order"}
		first, giveUp := context.WithCancel(t.Context())
		var all sync.WaitGroup
		gone := make(chan error, 1)
		all.Go(func() { gone <- s.Check(first, of, payloads(nil)) })
		synctest.Wait()
		for range 20 {
			all.Go(func() {
				if err := s.Check(t.Context(), of, payloads(field(1, "x"))); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // all of them wait for the first one's compilation
		giveUp()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up: %v", err)
		}
		close(st.hold)
		all.Wait()
		if got := st.reads.Load(); got != 1 {
			t.Errorf("%d reads, want 1", got)
		}
	})
}

// While the registry cannot be read nothing is let through that needs it; what is compiled is still
// checked, and the failure is not remembered.
func TestRegistryAway(t *testing.T) {
	s, st := schemas(t)
	a, b := register(t, s, "a", plainText), register(t, s, "b", ruledText)
	one := &topicv1.TopicSchema{Id: a, Message: "t.v1.Order", Encoding: topicv1.TopicSchema_ENCODING_BINARY}
	other := &topicv1.TopicSchema{Id: b, Message: "t.v1.Order", Encoding: topicv1.TopicSchema_ENCODING_BINARY}
	if err := s.Check(t.Context(), one, payloads(field(1, "x"))); err != nil {
		t.Fatal(err)
	}
	st.away.Store(true)
	refusedAs(t, s.Check(t.Context(), one, payloads(field(1, 5))), refusal.SchemaMismatch, "id is not written")
	if err := s.Check(t.Context(), other, payloads(field(1, "abc"))); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("%v, want the store's error", err)
	}
	if _, err := s.Change(t.Context(), one, other); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a change: %v, want the store's error", err)
	}
	st.away.Store(false)
	if err := s.Check(t.Context(), other, payloads(field(1, "abc"))); err != nil {
		t.Error(err)
	}
}

// A request is completed by what the topic has, and by defaults.
func TestChange(t *testing.T) {
	s, _ := schemas(t)
	if err := s.registry.SetLevel(t.Context(), "s", registry.None); err != nil {
		t.Fatal(err)
	}
	first := register(t, s, "s", "syntax = \"proto3\";\nmessage A { string a = 1; }\nmessage B { message C {} C c = 1; }\n")
	grown := register(t, s, "s",
		"syntax = \"proto3\";\nmessage A { string a = 1; int32 n = 2; }\nmessage B { message C {} C c = 1; }\n")
	other := register(t, s, "s", "syntax = \"proto3\";\nmessage A { int32 a = 1; }\nmessage B { message C {} C c = 1; }\n")
	empty := register(t, s, "e", "syntax = \"proto3\";\npackage e;\n")
	ruled := register(t, s, "r", `syntax = "proto3"; import "buf/validate/validate.proto";
		message A { string a = 1 [(buf.validate.field).cel = {id: "x" message: "y" expression: "this.nothing"}]; }`)
	const binary, json = topicv1.TopicSchema_ENCODING_BINARY, topicv1.TopicSchema_ENCODING_JSON
	is := &topicv1.TopicSchema{Id: first, Message: "A", Encoding: binary}
	for name, tt := range map[string]struct {
		is, asked *topicv1.TopicSchema
		to        *topicv1.TopicSchema
		reason    refusal.Reason
		text      string
	}{
		"the first message": {asked: &topicv1.TopicSchema{Id: first}, to: is},
		"a message": {asked: &topicv1.TopicSchema{Id: first, Message: "B.C", Encoding: json},
			to: &topicv1.TopicSchema{Id: first, Message: "B.C", Encoding: json}},
		"earlier ids are the server's": {asked: &topicv1.TopicSchema{Id: first, EarlierIds: []int32{9}}, to: is},
		"the same":                     {is: is, asked: &topicv1.TopicSchema{Id: first}, to: is},
		"none":                         {is: is, asked: &topicv1.TopicSchema{}},
		"none of none":                 {asked: &topicv1.TopicSchema{}},
		"a message of no schema": {is: is, asked: &topicv1.TopicSchema{Message: "A"},
			reason: refusal.InvalidArgument, text: "schema.id"},
		"an encoding of no schema": {is: is, asked: &topicv1.TopicSchema{Encoding: json},
			reason: refusal.InvalidArgument, text: "schema.id"},
		"no schema": {asked: &topicv1.TopicSchema{Id: 99}, reason: refusal.SchemaNotFound, text: "99"},
		"no message": {asked: &topicv1.TopicSchema{Id: first, Message: "C"},
			reason: refusal.SchemaNotFound, text: "it has A, B"},
		"a schema without messages": {asked: &topicv1.TopicSchema{Id: empty},
			reason: refusal.SchemaNotFound, text: "no message"},
		"rules that cannot be used": {asked: &topicv1.TopicSchema{Id: ruled}, reason: refusal.InvalidArgument, text: "rules"},
		"one that may follow": {is: is, asked: &topicv1.TopicSchema{Id: grown},
			to: &topicv1.TopicSchema{Id: grown, Message: "A", Encoding: binary, EarlierIds: []int32{first}}},
		"one that may not": {is: is, asked: &topicv1.TopicSchema{Id: other},
			reason: refusal.SchemaIncompatible, text: "schema 1:"},
		"one that may not follow an earlier one": {
			is:    &topicv1.TopicSchema{Id: grown, Message: "A", Encoding: binary, EarlierIds: []int32{other}},
			asked: &topicv1.TopicSchema{Id: first}, reason: refusal.SchemaIncompatible, text: "schema 3:"},
		"another message": {is: is, asked: &topicv1.TopicSchema{Id: grown, Message: "B"},
			reason: refusal.SchemaIncompatible, text: "messages of A"},
		"another encoding": {is: is, asked: &topicv1.TopicSchema{Id: first, Encoding: json},
			reason: refusal.SchemaIncompatible, text: "BINARY"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.Change(t.Context(), tt.is, tt.asked)
			if tt.reason != "" {
				refusedAs(t, err, tt.reason, tt.text)
				return
			}
			if err != nil || got.From != tt.is || fmt.Sprint(got.To) != fmt.Sprint(tt.to) {
				t.Errorf("%v, %v, want %v", got, err, tt.to)
			}
		})
	}
}

// A topic's schema changes so many times, and is then to be removed first.
func TestManyChanges(t *testing.T) {
	s, _ := schemas(t)
	if err := s.registry.SetLevel(t.Context(), "s", registry.None); err != nil {
		t.Fatal(err)
	}
	var ids []int32
	text := "syntax = \"proto3\";\nmessage A {"
	for i := range maxEarlier + 2 {
		text += fmt.Sprintf(" bool f%d = %d;", i+1, i+1)
		ids = append(ids, register(t, s, "s", text+" }\n"))
	}
	is := &topicv1.TopicSchema{Id: ids[maxEarlier-1], Message: "A", Encoding: topicv1.TopicSchema_ENCODING_BINARY,
		EarlierIds: ids[:maxEarlier-1]}
	c, err := s.Change(t.Context(), is, &topicv1.TopicSchema{Id: ids[maxEarlier]})
	if err != nil || len(c.To.GetEarlierIds()) != maxEarlier {
		t.Fatalf("the last change: %v, %v", c.To, err)
	}
	_, err = s.Change(t.Context(), c.To, &topicv1.TopicSchema{Id: ids[maxEarlier+1]})
	refusedAs(t, err, refusal.TooMany, "32 schemas")
	if _, err := s.Change(t.Context(), c.To, &topicv1.TopicSchema{}); err != nil {
		t.Errorf("it cannot be removed: %v", err)
	}
}

// What a refusal repeats is bounded, and is text that can be shown.
func TestRefusalsAreShort(t *testing.T) {
	s, _ := schemas(t)
	if err := s.registry.SetLevel(t.Context(), "s", registry.None); err != nil {
		t.Fatal(err)
	}
	fields := func(kind string) string {
		var b strings.Builder
		for i := 1; i <= 200; i++ {
			fmt.Fprintf(&b, " %s %s%d = %d;", kind, strings.Repeat("x", 100), i, i)
		}
		return "syntax = \"proto3\";\nmessage A {" + b.String() + " }\n"
	}
	a, b := register(t, s, "s", fields("string")), register(t, s, "s", fields("int32"))
	of := &topicv1.TopicSchema{Id: a, Message: "A", Encoding: topicv1.TopicSchema_ENCODING_JSON}
	_, err := s.Change(t.Context(), of, &topicv1.TopicSchema{Id: b})
	refusedAs(t, err, refusal.SchemaIncompatible, "and more")
	if len(err.Error()) > 3000 {
		t.Errorf("%d bytes of findings", len(err.Error()))
	}
	err = s.Check(t.Context(), of, payloads([]byte(`{"`+strings.Repeat("\x00\u202e", 10_000)+`":1}`)))
	refusedAs(t, err, refusal.SchemaMismatch, "messages[0]")
	if len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\x00\u202e") {
		t.Errorf("%d bytes: %q", len(err.Error()), err)
	}
}
