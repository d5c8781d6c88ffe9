package opsctl_test

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// A migration without any relay prints what it waits for, thaws by itself, continues at its last
// phase, and is undone. Nothing is done without --execute.
func TestMigration(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	out, _ := c.run(0, "migration run --partitions 128 messages.persisted")
	c.has(out, "begins     from messages.persisted to messages.persisted.v2 with 128 partitions", "nothing was changed")
	out, _ = c.run(0, "migration status")
	c.has(out, "messages.persisted   messages.persisted   64          current")

	out, errs := c.run(1, "migration run --partitions 128 --max-freeze 1s --execute messages.persisted")
	c.has(out, "1 planned  messages.persisted.v2 will have 128 partitions", "2 created ", "3 frozen ",
		"waits: no worker runs the relay of slot 0")
	c.has(errs, "nothing is frozen any more, repeat it later; it waited for no worker runs the relay of slot 0",
		"the same command continues from the last step")
	s, err := versions.Load(t.Context(), r.Store)
	if err != nil || s.Move == nil || s.Move.Phase != versions.Created || s.Frozen("messages.persisted") {
		t.Fatalf("%+v %v", s.Move, err)
	}
	out, _ = c.run(0, "migration status")
	c.has(out, "messages.persisted.v2  128         next", "messages.persisted is being migrated, begun by ada: created")

	_, errs = c.run(1, "migration run --partitions 32 messages.persisted")
	c.has(errs, "messages.persisted to 128 partitions, begun by ada: end or abort it first")
	_, errs = c.run(1, "migration run --partitions 32 --execute chats.created")
	c.has(errs, "end or abort it first")

	out, _ = c.run(0, "migration abort")
	c.has(out, "messages.persisted stays as it is", "nothing was changed")
	out, _ = c.run(0, "migration abort --execute")
	c.has(out, "its migration is aborted")
	_, errs = c.run(1, "migration abort --execute")
	c.has(errs, "there is no migration")
	out, _ = c.run(0, "migration status")
	c.has(out, "messages.persisted.v2  128         abandoned")

	for _, line := range []string{"migration run --partitions 100 messages.persisted",
		"migration run --partitions 16 dead_letters", "migration run --partitions 16 other",
		"migration retire --execute messages.persisted.v2", "migration retire messages.persisted.v2",
		"migration retire other"} {
		c.run(1, line)
	}
	for _, line := range []string{"migration run messages.persisted", "migration run --partitions 16",
		"migration run --partitions 9999999 x", "migration retire", "migration status x", "migration"} {
		c.run(2, line)
	}
}

// An old topic is retired once the retention of its last record, a week, is over.
func TestRetire(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	save := func(old time.Duration) {
		t.Helper()
		s, err := versions.Load(t.Context(), r.Store)
		testkit.Must(t, err)
		s.Topics = map[string][]versions.Version{"messages.persisted": {
			{Number: 1, Partitions: 64, Status: versions.Past, Until: time.Now().Add(-old).UnixMilli()},
			{Number: 2, Partitions: 128, Status: versions.Current, From: time.Now().Add(-old).UnixMilli()},
		}}
		if _, err := versions.Save(t.Context(), r.Store, s); err != nil {
			t.Fatal(err)
		}
	}
	save(167 * time.Hour)
	_, errs := c.run(1, "migration retire --execute messages.persisted")
	c.has(errs, "its last record is kept until ")
	save(169 * time.Hour)
	out, _ := c.run(0, "migration retire messages.persisted")
	c.has(out, "nothing was changed")
	out, _ = c.run(0, "migration retire --execute messages.persisted")
	c.has(out, "no group reads it any more")
	s, err := versions.Load(t.Context(), r.Store)
	if err != nil || len(s.Readable("messages.persisted")) != 1 {
		t.Errorf("%v are read, %v", s.Readable("messages.persisted"), err)
	}
	c.run(1, "migration retire --execute messages.persisted")
}
