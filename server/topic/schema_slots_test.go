package topic_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
	"github.com/parley-chat/parley/server/topic/topictest"
)

// The next owner of a slot checks by the schema that the one before has set. An owner that has lost the
// slot without noticing can neither change it nor keep a schema in the registry.
func TestSchemaOfAnotherOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := newCluster(t, 1)
		r := registry.New(c.Store)
		register := func(subject, text string) int32 {
			v, err := r.Register(ctx, subject, registry.Schema{Text: text}, registry.RegisterOptions{})
			testkit.Must(t, err)
			return int32(v.ID)
		}
		first := register("first", "syntax = \"proto3\";\nmessage A { string a = 1; }\n")
		grown := register("grown", "syntax = \"proto3\";\nmessage A { string a = 1; string b = 2; }\n")
		ended := make(chan error, 2)
		begin := func() *topic.Service {
			s, _, err := c.Open(&topictest.Gate{}, c.Store)(ctx, storage.Slot{Number: 0, Of: 1})
			testkit.Must(t, err)
			go func() { ended <- s.Run(ctx, func() {}) }()
			return s
		}
		set := func(s *topic.Service, id int32) error {
			_, err := s.Configure(ctx, op, &topicv1.ConfigureTopicRequest{Topic: "t",
				Config: &topicv1.TopicConfig{Schema: &topicv1.TopicSchema{Id: id}}})
			return err
		}
		publish := func(s *topic.Service, payload string) error {
			_, err := s.Publish(ctx, op, &topicv1.PublishRequest{Topic: "t",
				Messages: []*topicv1.TopicMessage{{Payload: []byte(payload)}}})
			return err
		}
		stale := begin()
		testkit.Must(t, set(stale, first))
		owner := begin()
		if err := publish(owner, "\x12\x01x"); !errors.Is(err, &refusal.Error{Reason: refusal.SchemaMismatch}) {
			t.Errorf("the next owner: %v, want a refusal by the schema", err)
		}
		testkit.Must(t, publish(owner, "\x0a\x01x"))
		if err := set(stale, grown); !errors.Is(err, topic.ErrFenced) {
			t.Errorf("the owner before: %v, want that another one has the topics", err)
		}
		_, err := r.DeleteSubject(ctx, "grown", false)
		testkit.Must(t, err)
		_, err = r.DeleteSubject(ctx, "grown", true)
		testkit.Must(t, err) // nothing keeps it
		_, err = r.DeleteSubject(ctx, "first", false)
		testkit.Must(t, err)
		if _, err = r.DeleteSubject(ctx, "first", true); err == nil {
			t.Error("the schema of the topic is deleted")
		}
		testkit.Must(t, publish(owner, "\x0a\x01y"))
		cancel()
		for range 2 {
			<-ended
		}
	})
}
