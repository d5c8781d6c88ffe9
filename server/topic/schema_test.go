package topic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// order is a message with a text as field 1.
func order(text string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), text)
}

// orderText is a schema of orders that has more fields.
func orderText(more string) string {
	return "syntax = \"proto3\";\npackage shop.v1;\nmessage Order { string id = 1;" + more + " }\nmessage Bill { string id = 1; }\n"
}

// schema registers a schema under a subject of its own, and returns its id.
func (x *fixture) schema(text string) int32 {
	x.t.Helper()
	r := registry.New(x.store)
	v, err := r.Register(x.t.Context(), fmt.Sprintf("s%x", text), registry.Schema{Text: text}, registry.RegisterOptions{})
	if err != nil {
		x.t.Fatal(err)
	}
	return int32(v.ID)
}

func (x *fixture) setSchema(name string, s *topicv1.TopicSchema) (*topicv1.ConfigureTopicResponse, error) {
	return x.Configure(x.t.Context(), op,
		&topicv1.ConfigureTopicRequest{Topic: name, Config: &topicv1.TopicConfig{Schema: s}})
}

// send publishes payloads.
func (x *fixture) send(name string, producer *topicv1.Producer, payloads ...[]byte) error {
	r := &topicv1.PublishRequest{Topic: name, Producer: producer}
	for _, b := range payloads {
		r.Messages = append(r.Messages, &topicv1.TopicMessage{Payload: b})
	}
	_, err := x.Publish(x.t.Context(), op, r)
	return err
}

// stored is how many messages a topic of one partition has had.
func (x *fixture) stored(name string) int64 {
	x.t.Helper()
	t, err := x.Topic(x.t.Context(), op, name)
	if err != nil {
		x.t.Fatal(err)
	}
	return t.GetPartitions()[0].GetEnd()
}

// Only what the schema of a topic says is stored, also after a restart: of a request with one other
// message nothing is. The answers show the schema with its message and encoding.
func TestSchemaOfATopic(t *testing.T) {
	unbubbled(t, func(t *testing.T, x *fixture) {
		id := x.schema(orderText(""))
		made := x.configure("orders", &topicv1.TopicConfig{Schema: &topicv1.TopicSchema{Id: id}})
		json := x.configure("bills", &topicv1.TopicConfig{Schema: &topicv1.TopicSchema{
			Id: id, Message: "shop.v1.Bill", Encoding: topicv1.TopicSchema_ENCODING_JSON,
		}})
		want := &topicv1.TopicSchema{Id: id, Message: "shop.v1.Order", Encoding: topicv1.TopicSchema_ENCODING_BINARY}
		for range 2 {
			list, err := x.Topics(t.Context(), op, &topicv1.ListTopicsRequest{})
			testkit.Must(t, err)
			got, err := x.Topic(t.Context(), op, "orders")
			testkit.Must(t, err)
			for _, s := range []*topicv1.TopicSchema{
				made.GetConfig().GetSchema(), got.GetConfig().GetSchema(), list.GetTopics()[1].GetConfig().GetSchema(),
			} {
				if !proto.Equal(s, want) {
					t.Errorf("schema %v, want %v", s, want)
				}
			}
			before := x.stored("orders")
			refused := x.Counters().Mismatched.Load()
			testkit.Must(t, x.send("orders", nil, order("a"), order("b")))
			testkit.Must(t, x.send("bills", nil, []byte(`{"id":"x"}`)))
			for _, payload := range [][]byte{
				[]byte("hello"), order("a\xff"), {0x10, 1}, order("hello")[:3], []byte(`{"id":"x"}`),
			} {
				err := x.send("orders", nil, order("a"), order("b"), payload)
				refusedAs(t, err, refusal.SchemaMismatch)
				if !strings.Contains(err.Error(), "messages[2]") {
					t.Errorf("%v does not name the message", err)
				}
			}
			refusedAs(t, x.send("bills", nil, order("x")), refusal.SchemaMismatch)
			if n := x.stored("orders") - before; n != 2 {
				t.Errorf("%d messages are stored, want 2", n)
			}
			if n := x.Counters().Mismatched.Load() - refused; n != 6 {
				t.Errorf("%d refusals are counted, want 6", n)
			}
			x.restart()
		}
		if got := json.GetConfig().GetSchema().GetMessage(); got != "shop.v1.Bill" {
			t.Error(got)
		}
	})
}

// A topic's schema is followed by what the gate lets follow, and by nothing else. A topic with
// messages gets one, and loses it, without reading what it has.
func TestSchemaEvolves(t *testing.T) {
	unbubbled(t, func(t *testing.T, x *fixture) {
		first, grown := x.schema(orderText("")), x.schema(orderText(" string note = 2;"))
		other := x.schema(orderText(" int32 note = 2;"))
		x.configure("orders", nil)
		testkit.Must(t, x.send("orders", nil, []byte("free text")))
		r, err := x.setSchema("orders", &topicv1.TopicSchema{Id: first})
		testkit.Must(t, err)
		if e := fmt.Sprint(r.GetEffects()); !strings.Contains(e, "are not checked") {
			t.Errorf("effects %s", e)
		}
		refusedAs(t, x.send("orders", nil, []byte("free text")), refusal.SchemaMismatch)

		dry, err := x.Configure(t.Context(), op, &topicv1.ConfigureTopicRequest{Topic: "orders", DryRun: true,
			Config: &topicv1.TopicConfig{Schema: &topicv1.TopicSchema{Id: grown}}})
		testkit.Must(t, err)
		if s := dry.GetTopic().GetConfig().GetSchema(); s.GetId() != grown {
			t.Errorf("a dry run shows %v", s)
		}
		note := append(order("x"), protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "y")...)
		refusedAs(t, x.send("orders", nil, note), refusal.SchemaMismatch) // it was one
		_, err = x.setSchema("orders", &topicv1.TopicSchema{Id: grown})
		testkit.Must(t, err)
		testkit.Must(t, x.send("orders", nil, note, order("x")))

		before, err := x.Topic(t.Context(), op, "orders")
		testkit.Must(t, err)
		if ids := before.GetConfig().GetSchema().GetEarlierIds(); len(ids) != 1 || ids[0] != first {
			t.Errorf("earlier ids %v, want %d", ids, first)
		}
		for _, dry := range []bool{true, false} {
			_, err = x.Configure(t.Context(), op, &topicv1.ConfigureTopicRequest{Topic: "orders", DryRun: dry,
				Config: &topicv1.TopicConfig{Schema: &topicv1.TopicSchema{Id: other}}})
			refusedAs(t, err, refusal.SchemaIncompatible)
			if !strings.Contains(err.Error(), "shop.v1.Order.note") {
				t.Errorf("%v does not name the field", err)
			}
		}
		for _, s := range []*topicv1.TopicSchema{
			{Id: grown, Message: "shop.v1.Bill"}, {Id: grown, Encoding: topicv1.TopicSchema_ENCODING_JSON},
		} {
			_, err = x.setSchema("orders", s)
			refusedAs(t, err, refusal.SchemaIncompatible)
		}
		_, err = x.setSchema("orders", &topicv1.TopicSchema{Id: 9999})
		refusedAs(t, err, refusal.SchemaNotFound)
		if after, err := x.Topic(t.Context(), op, "orders"); err != nil || after.GetEtag() != before.GetEtag() {
			t.Errorf("a refused change changes the topic: %v, %v", after, err)
		}
		// Other settings leave it as it is.
		x.configure("orders", &topicv1.TopicConfig{PausePins: proto.Bool(false)})
		refusedAs(t, x.send("orders", nil, []byte("free text")), refusal.SchemaMismatch)

		r, err = x.setSchema("orders", &topicv1.TopicSchema{})
		testkit.Must(t, err)
		if r.GetTopic().GetConfig().GetSchema() != nil || !strings.Contains(fmt.Sprint(r.GetEffects()), "forgotten") {
			t.Errorf("the schema is not removed: %v", r)
		}
		testkit.Must(t, x.send("orders", nil, []byte("free text")))
		_, err = x.setSchema("orders", &topicv1.TopicSchema{Id: other})
		testkit.Must(t, err)
	})
}

// Topics that others write to cannot have a schema.
func TestSchemaOfASource(t *testing.T) {
	unbubbled(t, func(t *testing.T, x *fixture) {
		id := x.schema(orderText(""))
		for _, source := range []topicv1.Source{topicv1.Source_SOURCE_CHAT_EVENTS, topicv1.Source_SOURCE_SHARED} {
			_, err := x.Configure(t.Context(), op, &topicv1.ConfigureTopicRequest{Topic: "messages.persisted",
				Config: &topicv1.TopicConfig{Source: source, Schema: &topicv1.TopicSchema{Id: id}}})
			refusedAs(t, err, refusal.InvalidArgument)
		}
	})
}

// between is a store of a service in which something happens before a read of the registry, or before a plan.
type between struct {
	store.Store
	read, plan atomic.Pointer[func()]
	away       atomic.Bool
}

func fire(f *atomic.Pointer[func()]) {
	if do := f.Swap(nil); do != nil {
		(*do)()
	}
}

func (b *between) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if q.Table == store.Schemas {
		fire(&b.read)
		if b.away.Load() {
			return store.Page{}, store.ErrUnavailable
		}
	}
	return b.Store.Query(ctx, q)
}

func (b *between) Transact(ctx context.Context, p store.Plan) error {
	fire(&b.plan)
	return b.Store.Transact(ctx, p)
}

// betweenReads runs a test with a service on such a store.
func betweenReads(t *testing.T, f func(t *testing.T, x *fixture, b *between)) {
	t.Helper()
	unbubbled(t, func(t *testing.T, x *fixture) {
		b := &between{}
		x.wrap = func(s store.Store) store.Store { b.Store = s; return b }
		x.restart()
		f(t, x, b)
	})
}

func happens(at *atomic.Pointer[func()], f func()) { at.Store(&f) }

// A message that was checked by a schema is not stored under one that the topic has got since.
func TestSchemaChangesBesideAPublish(t *testing.T) {
	betweenReads(t, func(t *testing.T, x *fixture, b *between) {
		first := x.schema(orderText(""))
		other := x.schema("syntax = \"proto3\";\nmessage Count { int32 n = 1; }\n")
		x.configure("orders", &topicv1.TopicConfig{Schema: &topicv1.TopicSchema{Id: first}})
		x.restart() // which forgets what was compiled
		happens(&b.read, func() {
			for _, s := range []*topicv1.TopicSchema{{}, {Id: other}} {
				if _, err := x.setSchema("orders", s); err != nil {
					t.Error(err)
				}
			}
		})
		refusedAs(t, x.send("orders", nil, order("x")), refusal.SchemaMismatch)
		if n := x.stored("orders"); n != 0 {
			t.Errorf("%d messages are stored", n)
		}
		happens(&b.read, func() {})
		x.restart()
		happens(&b.read, func() { // the same schema: it is checked again, and stored
			x.configure("orders", &topicv1.TopicConfig{PausePins: proto.Bool(false)})
		})
		testkit.Must(t, x.send("orders", nil, []byte{0x08, 1}))
	})
}

// Of two changes that are judged against the same schema, the second is judged again, against what the
// first has made of the topic.
func TestSchemaChangesRace(t *testing.T) {
	betweenReads(t, func(t *testing.T, x *fixture, b *between) {
		first := x.schema(orderText(""))
		one, other := x.schema(orderText(" string note = 2;")), x.schema(orderText(" int32 note = 2;"))
		x.configure("orders", &topicv1.TopicConfig{Schema: &topicv1.TopicSchema{Id: first}})
		happens(&b.read, func() {
			if _, err := x.setSchema("orders", &topicv1.TopicSchema{Id: one}); err != nil {
				t.Error(err)
			}
		})
		_, err := x.setSchema("orders", &topicv1.TopicSchema{Id: other})
		refusedAs(t, err, refusal.SchemaIncompatible)
		got, err := x.Topic(t.Context(), op, "orders")
		testkit.Must(t, err)
		if id := got.GetConfig().GetSchema().GetId(); id != one {
			t.Errorf("schema %d, want %d", id, one)
		}

		// Two that make the topic: one is, and the other changes it.
		happens(&b.read, func() {
			if _, err := x.setSchema("bills", &topicv1.TopicSchema{Id: one}); err != nil {
				t.Error(err)
			}
		})
		_, err = x.setSchema("bills", &topicv1.TopicSchema{Id: other})
		refusedAs(t, err, refusal.SchemaIncompatible)
	})
}

// While the registry is away, nothing is stored that was not checked, and no schema is set.
func TestSchemaWithoutRegistry(t *testing.T) {
	betweenReads(t, func(t *testing.T, x *fixture, b *between) {
		id := x.schema(orderText(""))
		x.configure("orders", &topicv1.TopicConfig{Schema: &topicv1.TopicSchema{Id: id}})
		x.configure("free", nil)
		x.restart()
		b.away.Store(true)
		if err := x.send("orders", nil, order("x")); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%v, want that the store is away", err)
		}
		if _, err := x.setSchema("free", &topicv1.TopicSchema{Id: id}); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%v, want that the store is away", err)
		}
		testkit.Must(t, x.send("free", nil, []byte("x")))
		if n := x.stored("orders"); n != 0 {
			t.Errorf("%d messages are stored", n)
		}
		b.away.Store(false)
		testkit.Must(t, x.send("orders", nil, order("x")))
	})
}

// What a topic uses, or has used, is not deleted from the registry for good before the topic gives it
// up. A deletion that comes between a change's judgement and its plan makes the change fail.
func TestSchemaInUseStays(t *testing.T) {
	betweenReads(t, func(t *testing.T, x *fixture, b *between) {
		ctx := t.Context()
		texts := []string{orderText(""), orderText(" string note = 2;")}
		remove := func(text string) error {
			r := registry.New(x.store)
			subject := fmt.Sprintf("s%x", text)
			if _, err := r.DeleteSubject(ctx, subject, false); err != nil && !strings.Contains(err.Error(), "soft deleted") {
				return err
			}
			_, err := r.DeleteSubject(ctx, subject, true)
			return err
		}
		kept := func(when string, want bool) {
			t.Helper()
			for _, text := range texts {
				err := remove(text)
				got := err != nil && strings.Contains(err.Error(), "which topic orders uses")
				if got != want || !want && err != nil {
					t.Errorf("%s: %v, want kept: %t", when, err, want)
				}
			}
		}
		set := func() {
			t.Helper()
			for _, text := range texts {
				_, err := x.setSchema("orders", &topicv1.TopicSchema{Id: x.schema(text)})
				testkit.Must(t, err)
			}
		}
		set()
		kept("both in use", true)
		x.restart()
		testkit.Must(t, x.send("orders", nil, order("x"))) // deleted softly, it still counts
		kept("after a restart", true)
		_, err := x.setSchema("orders", &topicv1.TopicSchema{})
		testkit.Must(t, err)
		kept("without a schema", false)

		set()
		kept("in use again", true)
		testkit.Must(t, x.Delete(ctx, op, "orders"))
		kept("without the topic", false)

		id := x.schema(texts[0])
		happens(&b.plan, func() { testkit.Must(t, remove(texts[0])) })
		_, err = x.setSchema("orders", &topicv1.TopicSchema{Id: id})
		refusedAs(t, err, refusal.SchemaNotFound)
		if _, err := x.Topic(ctx, op, "orders"); err == nil {
			t.Error("the topic is made without its schema")
		}
		x.configure("orders", nil)
		id = x.schema(texts[1])
		happens(&b.plan, func() { testkit.Must(t, remove(texts[1])) })
		_, err = x.setSchema("orders", &topicv1.TopicSchema{Id: id})
		refusedAs(t, err, refusal.SchemaNotFound)
	})
}

// A request that was stored before the topic had its schema is answered as it was, under its number;
// other messages under it are not.
func TestSchemaAndRepeatedRequests(t *testing.T) {
	unbubbled(t, func(t *testing.T, x *fixture) {
		x.configure("orders", nil)
		first := &topicv1.Producer{Id: "p", Number: 1}
		testkit.Must(t, x.send("orders", first, []byte("free text")))
		_, err := x.setSchema("orders", &topicv1.TopicSchema{Id: x.schema(orderText(""))})
		testkit.Must(t, err)
		testkit.Must(t, x.send("orders", first, []byte("free text")))
		refusedAs(t, x.send("orders", first, []byte("other text")), refusal.ProducerNumberReused)
		refusedAs(t, x.send("orders", &topicv1.Producer{Id: "p", Number: 2}, []byte("free text")), refusal.SchemaMismatch)
		testkit.Must(t, x.send("orders", &topicv1.Producer{Id: "p", Number: 2}, order("x"))) // the number is not used up
		if n := x.stored("orders"); n != 2 {
			t.Errorf("%d messages are stored, want 2", n)
		}
	})
}
