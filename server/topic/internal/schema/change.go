package schema

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Bounds of what a refusal repeats of the gate's findings.
const (
	maxFindings     = 5
	maxFindingBytes = 400
)

// Change is what a topic's schema becomes.
type Change struct {
	From, To *topicv1.TopicSchema // nil: none
}

// Change completes what a request asks for, and judges it. An asked schema without id means none. It is
// not called with a topic's lock: the caller stores the change only if the topic's schema is still is.
//
// Refusals: SCHEMA_NOT_FOUND if the registry does not have the schema, or the schema not the message;
// SCHEMA_INCOMPATIBLE if it may not follow one that the topic has had; TOO_MANY if the topic has had too
// many. Other errors are the store's, and the context's if the judgement takes too long.
func (s *Schemas) Change(ctx context.Context, is, asked *topicv1.TopicSchema) (Change, error) {
	if asked.GetId() == 0 {
		if asked.GetMessage() != "" || asked.GetEncoding() != 0 {
			return Change{}, refusal.New(refusal.InvalidArgument,
				"schema.id is required: name the schema's id in the registry, or leave schema empty to remove it")
		}
		return Change{From: is}, nil
	}
	next := &topicv1.TopicSchema{
		Id:       asked.GetId(),
		Message:  cmp.Or(asked.GetMessage(), is.GetMessage()),
		Encoding: cmp.Or(asked.GetEncoding(), is.GetEncoding(), topicv1.TopicSchema_ENCODING_BINARY),
	}
	switch {
	case is == nil:
	case next.GetMessage() != is.GetMessage():
		return Change{}, refusal.New(refusal.SchemaIncompatible, "the topic has messages of %s, and not of %.512q: "+
			"remove the schema first", is.GetMessage(), next.GetMessage())
	case next.GetEncoding() != is.GetEncoding():
		return Change{}, refusal.New(refusal.SchemaIncompatible, "the topic has messages in %s: "+
			"remove the schema first", is.GetEncoding())
	case next.GetId() == is.GetId():
		return Change{is, is}, nil
	}
	c, err := s.load(ctx, key{next.GetId(), next.GetMessage()}, true)
	if err != nil {
		return Change{}, err
	}
	next.Message = string(c.message.FullName())
	if is == nil {
		return Change{To: next}, nil
	}
	next.EarlierIds = slices.DeleteFunc(storage.SchemaIDs(is), func(id int32) bool { return id == next.GetId() })
	if len(next.GetEarlierIds()) > maxEarlier {
		return Change{}, refusal.New(refusal.TooMany, "the topic has had %d schemas, and each change is judged against all: "+
			"remove the schema first", maxEarlier)
	}
	return Change{is, next}, s.judge(ctx, next)
}

// judge refuses a schema that may not follow those that a topic has had.
func (s *Schemas) judge(ctx context.Context, next *topicv1.TopicSchema) error {
	within, cancel := context.WithTimeout(ctx, judgeTime)
	defer cancel()
	if err := s.judging.Acquire(within, 1); err != nil {
		return late(ctx, err)
	}
	defer s.judging.Release(1)
	var earlier []int
	for _, id := range next.GetEarlierIds() {
		earlier = append(earlier, int(id))
	}
	findings, err := s.registry.Follows(within, int(next.GetId()), earlier)
	if err != nil {
		return late(ctx, refused(err))
	}
	if len(findings) == 0 {
		return nil
	}
	text := strings.Builder{}
	for _, f := range findings[:min(len(findings), maxFindings)] {
		text.WriteString("\n- " + clipped(f, maxFindingBytes))
	}
	if len(findings) > maxFindings {
		text.WriteString("\n- and more")
	}
	return refusal.New(refusal.SchemaIncompatible,
		"schema %d may not follow what the topic has had: its readers and theirs must read the messages of both%s",
		next.GetId(), text.String())
}

// late says that this process has more to judge than it can, where it is not the caller who gave up.
func late(caller context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && caller.Err() == nil {
		return refusal.New(refusal.Overloaded, "the change of the schema was not judged within %s: try again later", judgeTime)
	}
	return err
}

// Writes are what the plan that stores the change has beside it, so that the registry does not delete
// what the topic uses. Package storage gives up what it no longer uses.
func (s *Schemas) Writes(ctx context.Context, c Change, topic string) (writes []store.Write, err error) {
	if c.To == nil || slices.Contains(storage.SchemaIDs(c.From), c.To.GetId()) {
		return nil, nil
	}
	if writes, err = s.registry.Keep(ctx, int(c.To.GetId()), table.SchemaTopic(topic)); err != nil {
		return nil, refused(err)
	}
	return writes, nil
}
