package opsctl_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/consume/parked"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// EV37, EV42: operators see which keys are parked, since when and why, and release one: all its
// letters are redriven in order, or discarded. The other stays.
func TestParkedKeys(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	out, _ := c.run(0, "parked list")
	if strings.Count(out, "\n") != 1 {
		t.Errorf("keys are parked:\n%s", out)
	}
	log := parked.Log{Store: r.Store, Clock: time.Now, Group: opstest.Group, Consumer: "me"}
	testkit.Must(t, r.Store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut,
		Key:  table.OwnershipKey(table.AttemptsPartition(opstest.Group, kafka.MessagesPersisted, 3)),
		Item: table.Ownership{Consumer: "me"}.Item()}}))
	for n, key := range []string{chatA, chatB} {
		var records []*kafka.Record
		for i := range 3 {
			records = append(records, r.Event(key, 10*n+i+1))
		}
		_, err := log.Begin(t.Context(), records[0], parked.Failure{Class: "permanent", Reason: "bad", Attempts: 3})
		testkit.Must(t, err)
		_, err = log.Follow(t.Context(), records[1:])
		testkit.Must(t, err)
		for _, rec := range records {
			r.DeadLetter(opstest.Group, rec, "permanent: bad")
		}
	}
	out, _ = c.run(0, "parked list")
	c.has(out, opstest.Group, kafka.MessagesPersisted, chatA, chatB, "permanent: bad", kafka.MessagesPersisted+"/3/1 ",
		kafka.MessagesPersisted+"/3/11 ")
	out, _ = c.run(0, "parked list --limit 1")
	if !strings.Contains(out, chatA) || strings.Contains(out, chatB) {
		t.Errorf("not the first key alone:\n%s", out)
	}
	_, token, _ := strings.Cut(out, "--page-token ")
	out, _ = c.run(0, "parked list --limit 1 --page-token "+token)
	if strings.Contains(out, chatA) || !strings.Contains(out, chatB) || strings.Contains(out, "--page-token") {
		t.Errorf("not the last key alone:\n%s", out)
	}
	_, errs := c.run(1, "parked list --group x --page-token "+token)
	c.has(errs, "not a page token of this list")
	for filter, want := range map[string]int{
		"--group nobody": 0, "--group " + opstest.Group: 2, "--key " + chatB: 1, "--topic chats.created": 0,
		"--topic " + kafka.MessagesPersisted: 2,
	} {
		if out, _ := c.run(0, "parked list "+filter); strings.Count(out, "\n") != want+1 {
			t.Errorf("%s: %d keys are expected:\n%s", filter, want, out)
		}
	}
	out, _ = c.run(0, "parked list --json --key "+chatA)
	c.has(out, `"records":"3"`, `"failureClass":"FAILURE_CLASS_PERMANENT"`, `"partition":3`)

	var order []string
	r.Handle = func(_ context.Context, rec *kafka.Record) error {
		order = append(order, fmt.Sprintf("%s/%d", rec.Key, rec.Offset))
		return nil
	}
	line := fmt.Sprintf("parked release %%s %s %s ", opstest.Group, kafka.MessagesPersisted)
	c.run(2, "parked release "+chatA)
	out, _ = c.run(0, fmt.Sprintf(line, "")+chatA)
	c.has(out, "3 chosen, 3 would be redriven", "nothing was changed")
	out, _ = c.run(0, fmt.Sprintf(line, "--execute")+chatA)
	c.has(out, "3 chosen, 3 redriven", "the key is not parked")
	if want := []string{chatA + "/1", chatA + "/2", chatA + "/3"}; fmt.Sprint(order) != fmt.Sprint(want) {
		t.Errorf("the handler had %v, not %v", order, want)
	}
	out, _ = c.run(0, "parked list")
	if strings.Contains(out, chatA) || !strings.Contains(out, chatB) {
		t.Errorf("not the other key alone:\n%s", out)
	}
	r.Handle = func(context.Context, *kafka.Record) error { return consume.Fail(consume.Permanent, "bad", nil) }
	c.run(3, fmt.Sprintf(line, "--execute")+chatB) // it fails again, and stays
	out, _ = c.run(0, "parked list")
	c.has(out, chatB)
	out, _ = c.run(0, fmt.Sprintf(line, "--execute --discard mistake")+chatB)
	c.has(out, "3 chosen, 3 discarded", "the key is not parked")
	out, _ = c.run(0, "parked list")
	if strings.Count(out, "\n") != 1 {
		t.Errorf("keys are parked:\n%s", out)
	}
	out, _ = c.run(0, "audit")
	c.has(out, "DiscardDeadLetters", "mistake")
}
