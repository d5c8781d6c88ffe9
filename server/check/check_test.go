package check_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/check"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/relay"
)

// harness is a data directory that the real packages filled, and what is in it.
type harness struct {
	dir    string
	direct string // a chat of alice and bob
	group  string // of alice, bob, carol and dora; erik left, frank was removed and came back
	young  string // a group whose members are still on their way in
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func config(dir string) backend.Config {
	return backend.Config{Embedded: &backend.Embedded{DataDir: dir, Kafka: "127.0.0.1:0"}}
}

// stuck is a store in which nobody who is on the way in arrives.
type stuck struct{ store.Store }

func (s stuck) Transact(ctx context.Context, p store.Plan) error {
	for _, w := range p.Writes {
		if w.Key.Table == store.PendingMembers && w.Op != store.OpPut {
			return store.ErrUnavailable
		}
	}
	return s.Store.Transact(ctx, p)
}

// fill makes a data directory with everything in it that a chat can have.
func fill(t testing.TB, messages int) *harness {
	t.Helper()
	h := &harness{dir: t.TempDir()}
	ctx := t.Context()
	eng, err := backend.Open(config(h.dir))
	must(t, err)
	defer func() { must(t, eng.Close()) }()
	subjects := registry.New(eng.Store)
	ids, err := subjects.Events(ctx)
	must(t, err)
	serde, err := event.NewSerde(ids, nil)
	must(t, err)
	service := func(st store.Store) *chat.Service {
		s, err := chat.New(ctx, chat.Config{Store: st, Clock: time.Now, Generation: eng.Generation, Producer: "p", Sleep: func(context.Context, time.Duration) error { return errors.New("no more") }})
		must(t, err)
		return s
	}
	chats := service(eng.Store)
	for _, u := range []string{"alice", "bob", "carol", "dora", "erik", "frank", "gus"} {
		must(t, chats.EnsureUser(ctx, u))
	}
	direct, err := chats.CreateDirect(ctx, chat.CreateDirect{Caller: "alice", Other: "bob"})
	must(t, err)
	group, err := chats.CreateGroup(ctx, chat.CreateGroup{Caller: "alice", Name: "all", Members: []string{"bob", "carol", "erik", "frank"}, RequestID: "r1", History: table.SinceJoined})
	must(t, err)
	young, err := service(stuck{eng.Store}).CreateGroup(ctx, chat.CreateGroup{Caller: "alice", Name: "young", Members: []string{"bob", "carol"}})
	must(t, err)
	h.direct, h.group, h.young = direct.ChatID, group.ChatID, young.ChatID
	send := func(id, from string, n int) {
		for i := range n {
			_, err := chats.Send(ctx, chat.Send{Caller: from, ChatID: id, Content: fmt.Sprint("message ", i, " of ", from)})
			must(t, err)
		}
	}
	change := func(op chat.Operation, user string, role table.Role) {
		c := chat.MemberChange{Caller: "alice", ChatID: h.group, UserID: user, Role: role}
		if op == chat.OpLeave {
			c.Caller = user
		}
		_, err := chats.Change(ctx, op, c)
		must(t, err)
	}
	send(h.direct, "alice", messages)
	send(h.group, "bob", messages)
	change(chat.OpRemove, "frank", "")
	change(chat.OpAdd, "frank", table.Member)
	change(chat.OpAdd, "dora", table.Member)
	change(chat.OpRole, "carol", table.Admin)
	change(chat.OpLeave, "erik", "")
	name := "everybody"
	_, _, err = chats.UpdateChat(ctx, chat.ChatChange{Caller: "alice", ChatID: h.group, Name: &name})
	must(t, err)
	send(h.group, "carol", messages)
	_, err = chats.MarkRead(ctx, chat.MarkRead{Caller: "alice", ChatID: h.group, Sequence: 2})
	must(t, err)

	client, err := kafka.NewTransactional(eng.KafkaAddr(), "relay", eng.KafkaOptions()...)
	must(t, err)
	defer client.Close()
	now := time.Now()
	r, err := relay.New(relay.Config{
		Store: eng.Store, Serde: serde, Clock: func() time.Time { return now }, Logger: slog.New(slog.DiscardHandler), Flush: eng.LogStable,
		Publish: func(ctx context.Context, records []*kafka.Record) error { return kafka.Transact(ctx, client, records) },
	})
	must(t, err)
	for range 3 {
		now = now.Add(3 * time.Second)
		must(t, r.Cycle(ctx))
	}
	send(h.group, "dora", 3) // these wait in the outbox
	return h
}

// copyOf copies the directory, so that the copy can be damaged.
func (h *harness) copyOf(t testing.TB) *harness {
	t.Helper()
	c := *h
	c.dir = t.TempDir()
	must(t, os.CopyFS(c.dir, os.DirFS(h.dir)))
	return &c
}

// open opens the directory; repair lets it be changed.
func (h *harness) open(t testing.TB, repair bool) *backend.Offline {
	t.Helper()
	o, err := backend.OpenOffline(config(h.dir), repair)
	must(t, err)
	return o
}

// damage changes rows behind the back of everybody.
func (h *harness) damage(t testing.TB, f func(o *backend.Offline)) {
	t.Helper()
	o := h.open(t, true)
	f(o)
	must(t, o.Close())
}

func (h *harness) check(t testing.TB, repair bool) ([]check.Finding, check.Report) {
	t.Helper()
	o := h.open(t, repair)
	defer func() { must(t, o.Close()) }()
	var list []check.Finding
	report, err := check.Run(t.Context(), check.Config{Data: o, Repair: repair, Clock: time.Now, Out: io.Discard, OnFinding: func(f check.Finding) { list = append(list, f) }})
	must(t, err)
	return list, report
}

// rows is all that is stored, as text, but for the rows that a repair cannot make as
// they were: the generation, marks of the log, and when something was last looked at.
func (h *harness) rows(t testing.TB) map[string]string {
	t.Helper()
	o := h.open(t, false)
	defer func() { must(t, o.Close()) }()
	all := map[string]string{}
	for _, d := range store.Tables() {
		if d.Name == store.Meta {
			continue
		}
		for row, err := range o.Raw.Rows(d.Name) {
			must(t, err)
			var b strings.Builder
			for _, a := range row.Item {
				if d.Name == store.DeliveryState && (a.Name == "revision" || a.Name == "changed_at") || d.Name == store.Outbox || d.Name == store.Users && a.Name == "created_at" || a.Name == "last_message_at" {
					continue
				}
				fmt.Fprintf(&b, "%s=%v ", a.Name, a.Value)
			}
			all[row.Key.String()] = b.String()
		}
	}
	return all
}

func same(t testing.TB, before, after map[string]string) {
	t.Helper()
	for k, v := range before {
		if after[k] != v {
			t.Errorf("%s was %s, is %s", k, v, after[k])
		}
	}
	for k := range after {
		if _, ok := before[k]; !ok {
			t.Errorf("%s was not there", k)
		}
	}
}

func set(t testing.TB, o *backend.Offline, k store.Key, attr string, v store.Value) {
	t.Helper()
	must(t, o.Store.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpUpdate, Key: k, Update: store.Update{Set: []store.Attr{{Name: attr, Value: v}}}}}}))
}

func write(t testing.TB, o *backend.Offline, w ...store.Write) {
	t.Helper()
	must(t, o.Store.Transact(t.Context(), store.Plan{Writes: w}))
}

func del(k store.Key) store.Write { return store.Write{Op: store.OpDelete, Key: k} }

func put(k store.Key, it store.Item) store.Write {
	return store.Write{Op: store.OpPut, Key: k, Item: it}
}

// garbage replaces the bytes of a row.
func garbage(t testing.TB, o *backend.Offline, k store.Key) {
	t.Helper()
	must(t, o.Store.DB().Set(embedded.ItemKey(nil, k), []byte("no item"), nil))
}

// waiting is the row of the outbox of the group's last messages.
func (h *harness) waiting(t testing.TB, o *backend.Offline) store.Row {
	t.Helper()
	page, err := o.Store.Query(t.Context(), store.Query{Table: store.Outbox, PK: table.ShardKey(event.Shard(h.group)), From: h.group, To: h.group + "~"})
	must(t, err)
	return page.Rows[0]
}

// request is the key of a row by which the repetition of a send is recognized.
func (h *harness) request(t testing.TB, o *backend.Offline) store.Key {
	t.Helper()
	for row, err := range o.Raw.Rows(store.IdempotencyKeys) {
		must(t, err)
		if strings.HasPrefix(row.Key.PK, "send#bob#"+h.group) {
			return row.Key
		}
	}
	t.Fatal("no request")
	return store.Key{}
}

func subject(t testing.TB, o *backend.Offline) store.Key {
	t.Helper()
	for row, err := range o.Raw.Rows(store.Schemas) {
		must(t, err)
		if !strings.HasPrefix(row.Key.PK, "#") {
			return row.Key
		}
	}
	t.Fatal("no subject")
	return store.Key{}
}

// What the real packages wrote is clean, and looking at it changes nothing.
func TestNothingIsWrong(t *testing.T) {
	h := fill(t, 10)
	before := h.rows(t)
	list, report := h.check(t, false)
	if len(list) > 0 {
		t.Fatalf("found %v", list)
	}
	if report.Chats != 3 || report.Messages != 33 || report.Users != 7 {
		t.Errorf("looked at %+v", report)
	}
	if list, _ := h.check(t, true); len(list) > 0 {
		t.Errorf("with --repair: %v", list)
	}
	same(t, before, h.rows(t))
}

// Each kind of damage is found by its own line. What can be derived is as it was after
// the repair, what cannot is left as it is.
func TestDamage(t *testing.T) {
	sound := fill(t, 10)
	before := sound.rows(t)
	for _, c := range damages {
		t.Run(c.name, func(t *testing.T) {
			h := sound.copyOf(t)
			h.damage(t, func(o *backend.Offline) { c.do(t, h, o) })
			has := func(list []check.Finding) bool {
				return slices.ContainsFunc(list, func(f check.Finding) bool { return f.Kind == c.kind && strings.Contains(f.String(), c.says) })
			}
			list, _ := h.check(t, false)
			if !has(list) {
				t.Fatalf("found %v", list)
			}
			fixed, report := h.check(t, true)
			if !has(fixed) {
				t.Fatalf("the repair found %v", fixed)
			}
			after, _ := h.check(t, false)
			if c.stays {
				if report.Found == report.Fixed || !has(after) {
					t.Errorf("%+v, and then %v", fixed, after)
				}
				return
			}
			if report.Found != report.Fixed || len(after) > 0 {
				t.Fatalf("%+v left %v", fixed, after)
			}
			if !c.differ {
				same(t, before, h.rows(t))
			}
		})
	}
}

// Damage to files is found, and the store is not repaired on the ground of what is left.
func TestDamagedFiles(t *testing.T) {
	sound := fill(t, 300)
	h := sound.copyOf(t)
	o := h.open(t, true)
	must(t, o.Store.DB().Flush())
	files, err := o.Raw.Files()
	must(t, err)
	must(t, o.Close())
	if len(files) == 0 {
		t.Fatal("no table files")
	}
	flip(t, files[len(files)-1].Path, 0.3)
	for _, repair := range []bool{false, true} {
		o, err := backend.OpenOffline(config(h.dir), repair)
		must(t, err)
		var list []check.Finding
		_, err = check.Run(t.Context(), check.Config{Data: o, Repair: repair, Clock: time.Now, Out: io.Discard, OnFinding: func(f check.Finding) { list = append(list, f) }})
		must(t, errors.Join(o.Close()))
		if !slices.ContainsFunc(list, func(f check.Finding) bool { return f.Kind == check.FileDamaged && strings.Contains(f.Where, ".sst") }) {
			t.Errorf("found %v, %v", list, err)
		}
		for _, f := range list {
			if f.Fixed {
				t.Errorf("repaired %v", f)
			}
		}
	}
}

func flip(t testing.TB, path string, where float64) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	b[int(float64(len(b))*where)] ^= 0x10
	must(t, os.WriteFile(path, b, 0o600))
}

// A damaged log is found, mended as at a start, and everything is published again.
func TestDamagedLog(t *testing.T) {
	sound := fill(t, 10)
	for name, do := range map[string]func(t *testing.T, log string){
		"a byte": func(t *testing.T, log string) {
			list, err := filepath.Glob(filepath.Join(log, "partitions", "messages.persisted-*", "*.dat"))
			must(t, err)
			flip(t, list[0], 0.4)
		},
		"a partition": func(t *testing.T, log string) {
			list, err := filepath.Glob(filepath.Join(log, "partitions", "messages.persisted-*", "*.dat"))
			must(t, err)
			must(t, os.RemoveAll(filepath.Dir(list[0])))
		},
		"a list": func(t *testing.T, log string) { must(t, os.Remove(filepath.Join(log, "topics.json"))) },
		"all":    func(t *testing.T, log string) { must(t, os.RemoveAll(log)) },
	} {
		t.Run(name, func(t *testing.T) {
			h := sound.copyOf(t)
			do(t, filepath.Join(h.dir, "log"))
			list, _ := h.check(t, false)
			if len(list) == 0 || list[0].Kind != check.LogDamaged {
				t.Fatalf("found %v", list)
			}
			if _, report := h.check(t, true); report.Found != report.Fixed {
				t.Errorf("repaired %+v", report)
			}
			if list, _ := h.check(t, false); len(list) > 0 {
				t.Errorf("left %v", list)
			}
		})
	}
}

// A store that lacks what its seal says is looked at, not repaired, and the line names
// the ways out.
func TestStoreLacksItsEnd(t *testing.T) {
	h := fill(t, 10)
	logs, err := filepath.Glob(filepath.Join(h.dir, "store", "*.log"))
	must(t, err)
	for _, l := range logs {
		must(t, os.Truncate(l, 0))
	}
	list, _ := h.check(t, false)
	if len(list) == 0 || list[0].Kind != check.DataMissing || !strings.Contains(list[0].What, "--accept-loss") {
		t.Errorf("found %v", list)
	}
	if _, err := backend.OpenOffline(config(h.dir), true); !errors.Is(err, embedded.ErrLost) {
		t.Errorf("repair: %v", err)
	}
}

// Random damage to what can be derived, ended in the middle of its repair: in the end
// the store is as it was.
func TestRandomDamage(t *testing.T) {
	sound := fill(t, 10)
	before := sound.rows(t)
	derived := map[store.Table]bool{
		store.ChatCounters: true, store.Chats: true, store.ChatMemberships: true, store.Messages: true, store.PendingMembers: true, store.DirectChatIndex: true, store.Users: true,
	}
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			h := sound.copyOf(t)
			n := 0
			h.damage(t, func(o *backend.Offline) {
				for _, d := range store.Tables() {
					if !derived[d.Name] {
						continue
					}
					for row := range o.Raw.Rows(d.Name) {
						if rng.IntN(4) > 0 || row.Key.PK == "gus" { // in no chat: nothing else knows of him
							continue
						}
						n++
						switch i := rng.IntN(len(row.Item) + 2); i {
						case len(row.Item):
							write(t, o, del(row.Key))
						case len(row.Item) + 1:
							garbage(t, o, row.Key)
						default:
							it := slices.Clone(row.Item)
							switch v := it[i].Value; {
							case it[i].Name == "version" || it[i].Name == "sequence" || it[i].Name == "last_message_at": // ahead would not be derived
								it = slices.Delete(it, i, i+1)
							case it[i].Name == "created_at" && d.Name == store.Users, it[i].Name == "status" && d.Name == store.Users, d.Name == store.Users && it[i].Name == "chats" && v.Int64() == 0:
								continue
							case it[i].Name == "created_at" && d.Name == store.DirectChatIndex, it[i].Name == "causation_id", it[i].Name == "correlation_id", d.Name == store.PendingMembers && it[i].Name != "members":
								continue
							case v.Kind() == store.KindInt:
								it[i].Value = store.Int(v.Int64() + 1)
							case v.Kind() == store.KindString:
								it[i].Value = store.String(v.Str() + "x")
							default:
								it = slices.Delete(it, i, i+1)
							}
							write(t, o, put(row.Key, it))
						}
					}
				}
			})
			for end := 1; ; end += 3 { // each time a little later
				o := h.open(t, true)
				left := end
				ctx, cancel := context.WithCancel(t.Context())
				_, err := check.Run(ctx, check.Config{Data: o, Repair: true, Clock: time.Now, Out: io.Discard, OnRepair: func() {
					if left--; left == 0 {
						cancel()
					}
				}})
				cancel()
				must(t, o.Close())
				if err == nil {
					break
				}
			}
			var out bytes.Buffer
			list, _ := h.check(t, false)
			for _, f := range list {
				fmt.Fprintln(&out, f)
			}
			if len(list) > 0 {
				t.Fatalf("after %d damages: %s", n, &out)
			}
			same(t, before, h.rows(t))
		})
	}
}
