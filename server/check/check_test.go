package check_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/check"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
)

// What the real packages wrote is clean, and checking it changes nothing.
func TestNothingIsWrong(t *testing.T) {
	h := fill(t, 10)
	before := h.rows(t)
	list, report := h.check(t, false)
	if len(list) > 0 {
		t.Fatalf("found %v", list)
	}
	if report.Chats != 3 || report.Messages != 33 || report.Users != 7 || report.Topics != 1 || report.TopicMessages != 8 {
		t.Errorf("looked at %+v", report)
	}
	if list, _ := h.check(t, true); len(list) > 0 {
		t.Errorf("with --repair: %v", list)
	}
	same(t, before, h.rows(t))
}

// The rows of requests of earlier versions have a longer hash, and say the chat once more.
func TestEarlierRequestsAreSound(t *testing.T) {
	h := fill(t, 10)
	h.damage(t, func(o *backend.Offline) {
		key := h.request(t, o)
		it, err := o.Store.Get(t.Context(), key, store.Strong)
		testkit.Must(t, err)
		if it.Get("chat_id").Kind() != 0 || len(it.Get("hash").Blob()) != 16 {
			t.Errorf("a request's row is %v", it)
		}
		set(t, o, key, "chat_id", store.String(table.RequestFrom(key.PK, it).ChatID))
		set(t, o, key, "hash", store.Bytes(append(it.Get("hash").Blob(), make([]byte, 16)...)))
	})
	if list, _ := h.check(t, false); len(list) > 0 {
		t.Errorf("found %v", list)
	}
}

// Each kind of damage is found by its own line. What can be derived is as it was after
// the repair, what cannot is left as it is.
func TestDamage(t *testing.T) {
	racetest.SkipSerial(t)
	sound := fill(t, 10)
	before := sound.rows(t)
	for _, c := range damages {
		t.Run(c.name, func(t *testing.T) {
			h := sound.copyOf(t)
			h.damage(t, func(o *backend.Offline) { c.do(t, h, o) })
			has := func(list []check.Finding, kind check.Kind) bool {
				return slices.ContainsFunc(list,
					func(f check.Finding) bool { return f.Kind == kind && strings.Contains(f.String(), c.says) })
			}
			list, _ := h.check(t, false)
			if !has(list, c.kind) {
				t.Fatalf("found %v", list)
			}
			var backup *fixture
			if c.backup {
				backup = sound
			}
			fixed, report := h.checkFrom(t, true, backup)
			if !has(fixed, cmp.Or(c.repaired, c.kind)) {
				t.Fatalf("the repair found %v", fixed)
			}
			after, _ := h.check(t, false)
			if c.stays {
				if report.Found == report.Fixed || !has(after, c.kind) {
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
	testkit.Must(t, o.Store.DB().Flush())
	files, err := o.Raw.Files()
	testkit.Must(t, err)
	testkit.Must(t, o.Close())
	if len(files) == 0 {
		t.Fatal("no table files")
	}
	flip(t, files[len(files)-1].Path, 0.3)
	for _, repair := range []bool{false, true} {
		o, err := backend.OpenOffline(config(h.dir), repair)
		testkit.Must(t, err)
		var list []check.Finding
		_, err = check.Run(t.Context(),
			check.Config{Data: o, Repair: repair, Clock: time.Now, Out: io.Discard,
				OnFinding: func(f check.Finding) { list = append(list, f) }})
		testkit.Must(t, errors.Join(o.Close()))
		if !slices.ContainsFunc(list, func(f check.Finding) bool {
			return f.Kind == check.FileDamaged &&
				strings.Contains(f.Where, ".sst")
		}) {
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
	testkit.Must(t, err)
	b[int(float64(len(b))*where)] ^= 0x10
	testkit.Must(t, os.WriteFile(path, b, 0o600))
}

// A batch of the event log that is lost or cannot be read is found, and what the store has of its events is published
// again.
func TestDamagedLog(t *testing.T) {
	sound := fill(t, 10)
	for name, do := range map[string]func(t *testing.T, o *backend.Offline, key, value []byte) store.Record{
		"a byte": func(_ *testing.T, _ *backend.Offline, key, value []byte) store.Record {
			value[len(value)/2] ^= 0x10
			return store.Record{Key: key, Value: value}
		},
		"a batch": func(_ *testing.T, _ *backend.Offline, key, _ []byte) store.Record {
			return store.Record{Key: key, Until: append(slices.Clone(key), 0)}
		},
		"a topic": func(_ *testing.T, _ *backend.Offline, key, _ []byte) store.Record {
			return store.Record{Key: key[:8], Until: append(slices.Clone(key[:8]), 0xff)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound.copyOf(t)
			h.damage(t, func(o *backend.Offline) {
				key, value := firstBatch(t, o)
				wait, err := o.Records.Commit(t.Context(), []store.Record{do(t, o, key, value)})
				testkit.Must(t, err)
				testkit.Must(t, wait())
			})
			list, _ := h.check(t, false)
			if !slices.ContainsFunc(list, func(f check.Finding) bool { return f.Kind == check.EventUnpublished }) {
				t.Fatalf("found %v", list)
			}
			if fixed, report := h.check(t, true); report.Found != report.Fixed && name == "a topic" {
				t.Errorf("repaired %v", fixed)
			}
			list, _ = h.check(t, false)
			if slices.ContainsFunc(list, func(f check.Finding) bool { return f.Kind != check.LogDamaged }) {
				t.Errorf("left %v", list)
			}
		})
	}
}

// The event log of an earlier release, which no start has moved yet, is no reason to publish everything again.
func TestLogOfAnEarlierRelease(t *testing.T) {
	h := fill(t, 10)
	h.damage(t, func(o *backend.Offline) {
		log := commitlog.NewLocal(o.Records, time.Now)
		for _, topic := range testkit.Value(log.EventTopics(t.Context()))(t) {
			testkit.Must(t, log.RemoveEventTopic(t.Context(), topic.Name))
		}
		write(t, o, del(table.LogKey()))
	})
	if list, _ := h.check(t, true); len(list) > 0 {
		t.Errorf("found %v", list)
	}
}

// firstBatch is the first batch of the event log.
func firstBatch(t *testing.T, o *backend.Offline) (key, value []byte) {
	t.Helper()
	topics := testkit.Value(commitlog.NewLocal(o.Records, time.Now).EventTopics(t.Context()))(t)
	from := binary.BigEndian.AppendUint64(nil, topics[0].Number)
	testkit.Must(t, o.Records.Seek(t.Context(), from, nil, false, func(k []byte, v func() ([]byte, error)) bool {
		key, value = slices.Clone(k), slices.Clone(testkit.Value(v())(t))
		return k[10] != 1 // of a batch
	}))
	return key, value
}

// A store that lacks what its seal says is checked, not repaired, and the line names
// the ways out.
func TestStoreLacksItsEnd(t *testing.T) {
	h := fill(t, 10)
	logs, err := filepath.Glob(filepath.Join(h.dir, "store", "*.log"))
	testkit.Must(t, err)
	for _, l := range logs {
		testkit.Must(t, os.Truncate(l, 0))
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
	racetest.SkipSerial(t)
	sound := fill(t, 10)
	before := sound.rows(t)
	derived := map[store.Table]bool{
		store.ChatCounters: true, store.Chats: true, store.ChatMemberships: true, store.Messages: true,
		store.PendingMembers: true, store.DirectChatIndex: true, store.Users: true,
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
							// ahead would not be derived
							case it[i].Name == "version" || it[i].Name == "sequence" || it[i].Name == "last_message_at":
								it = slices.Delete(it, i, i+1)
							case it[i].Name == "created_at" && d.Name == store.Users, it[i].Name == "status" && d.Name == store.Users,
								d.Name == store.Users && it[i].Name == "chats" && v.Int64() == 0:
								continue
							case it[i].Name == "created_at" && d.Name == store.DirectChatIndex, it[i].Name == "causation_id",
								it[i].Name == "correlation_id", d.Name == store.PendingMembers && it[i].Name != "members":
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
				testkit.Must(t, o.Close())
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
