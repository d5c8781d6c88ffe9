package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// frozen is the state in which messages are migrated and wait.
func frozen(revision int64) versions.State {
	return versions.State{
		Revision: revision,
		Topics: map[string][]versions.Version{kafka.MessagesPersisted: {
			{Number: 1, Partitions: 64, Status: versions.Current}, {Number: 2, Partitions: 128, Status: versions.Next},
		}},
		Move: &versions.Move{Topic: kafka.MessagesPersisted, Phase: versions.Frozen, Revision: revision},
	}
}

// types counts the published events by type.
func (r *fixture) types() map[string]int {
	n := map[string]int{}
	for _, e := range r.log {
		n[event.TypeOf(e)]++
	}
	return n
}

// A relay that cannot report a freeze, for lack of permission on the new topic for example,
// pauses the topic that is migrated and no other. It acquires its transactional id once per
// state, however often the report fails. After the thaw nothing is missing or out of order.
func TestUnreportedFreezeHoldsOneTopic(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	state, renewals, reports := versions.State{}, 0, 0
	denied := errors.New("no permission on the new topic")
	re.cfg.Topics = func(context.Context) (versions.State, error) { return state, nil }
	re.cfg.Renew = func(context.Context) error { renewals++; return nil }
	re.cfg.Report = func(context.Context, int64) error { reports++; return denied }
	id := r.group()
	r.send(id)
	r.rest(re)
	if n := r.types(); n["MessagePersisted"] != 1 || renewals != 0 {
		t.Fatalf("before the migration: %v and %d renewals, expected one message and no renewal", n, renewals)
	}

	state = frozen(7)
	r.now = r.now.Add(time.Minute)
	for range 10 {
		r.send(id)
		r.group()
		r.rest(re)
	}
	if n := r.types(); n["MessagePersisted"] != 1 || n["ChatCreated"] != 11 || n["MembershipChanged"] != 11 {
		t.Errorf("while the report fails: %v published, expected no message and 11 of the others", n)
	}
	if renewals != 1 || reports < 10 {
		t.Errorf("%d renewals and %d reports of one state, expected 1 and at least 10", renewals, reports)
	}

	state = frozen(8)
	state.Move.Phase, state.Move.Revision = versions.Created, 0 // the operator gave up
	r.now = r.now.Add(time.Minute)
	r.rest(re)
	r.check(true)
	if n := r.types(); n["MessagePersisted"] != 11 || renewals != 2 {
		t.Errorf("after the thaw: %v and %d renewals, expected 11 messages and 2 renewals", n, renewals)
	}
}

// A relay whose lease is uncertain publishes nothing under a new state: another relay may
// have reported a later one.
func TestNothingIsPublishedBeforeTheRenewal(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	renew := errors.New("the lease is not held any more")
	re.cfg.Topics = func(context.Context) (versions.State, error) { return frozen(7), nil }
	re.cfg.Renew = func(context.Context) error { return renew }
	re.cfg.Report = func(context.Context, int64) error { t.Error("reported without a renewal"); return nil }
	r.group()
	r.rest(re)
	if len(r.log) != 0 {
		t.Fatalf("%v published before the renewal, expected nothing", r.types())
	}
	renew, re.cfg.Report = nil, nil
	r.now = r.now.Add(time.Minute)
	r.rest(re)
	if n := r.types(); n["ChatCreated"] != 1 {
		t.Errorf("%v published after the renewal, expected one ChatCreated", n)
	}
}
