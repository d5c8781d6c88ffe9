package embedded

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/store"
)

// What a send costs the engine: three items are read and compared (the sender's
// row, the head of the chat, the request's row), six are written.

const (
	benchChats   = 10_000
	benchPayload = 512
	benchUsers   = 100_000
)

type send struct {
	chat, user string
	id         string
	version    int64
}

func (m *send) plan(payload []byte, text string, expires int64) store.Plan {
	sk := fmt.Sprintf("%016d", m.version)
	str, num := store.String, store.Int
	attr := func(name string, v store.Value) store.Attr { return store.Attr{Name: name, Value: v} }
	return store.Plan{Writes: []store.Write{
		{
			Op: store.OpPut, Key: store.Key{Table: store.IdempotencyKeys, PK: m.id}, Cond: store.Absent(), Name: "request",
			Item: store.NewItem(attr("chat_id", str(m.chat)), attr("sequence", num(m.version)),
				attr("hash", store.Bytes(payload[:32])), attr(store.ExpiresAtField, num(expires))),
		},
		{
			Op: store.OpUpdate, Key: store.Key{Table: store.DeliveryState, PK: m.user, SK: m.chat},
			Cond: store.Condition{}.Without("left_version"), Name: "member",
			Update: store.Update{Set: []store.Attr{attr("read_sequence", num(m.version)), attr("changed_at", num(expires))}},
		},
		{
			Op: store.OpPut, Key: store.Key{Table: store.ChatCounters, PK: m.chat}, Cond: headIs(m.version - 1), Name: "head",
			Item: store.NewItem(attr("version", num(m.version)), attr("sequence", num(m.version)),
				attr("membership_version", num(1)), attr("changed_at", num(expires)), attr("sender", str(m.user)),
				attr("preview", str(text[:64]))),
		},
		{
			Op: store.OpPut, Key: store.Key{Table: store.Messages, PK: m.chat, SK: sk},
			Item: store.NewItem(attr("sender_id", str(m.user)), attr("content", str(text)), attr("message_id", str(m.id)),
				attr("created_at", num(expires)), attr("version", num(m.version))),
		},
		{
			Op: store.OpPut, Key: store.Key{Table: store.Events, PK: m.chat, SK: sk},
			Item: store.NewItem(attr("type", str("message.persisted")), attr("payload", store.Bytes(payload))),
		},
		{
			Op: store.OpPut, Key: store.Key{Table: store.Outbox, PK: "07", SK: m.chat + "#" + sk},
			Item: store.NewItem(attr("count", num(1))),
		},
	}}
}

func headIs(version int64) store.Condition {
	if version == 0 {
		return store.Absent()
	}
	return store.Condition{}.Eq("version", store.Int(version))
}

// chats returns the sends of each chat one after the other, as a chat's queue does.
type chats struct {
	locks    []sync.Mutex
	versions []int64
}

// BenchmarkSend measures durable plans of one message. "hot" sends all to one chat,
// whose plans follow each other without waiting for the disk in between.
func BenchmarkSend(b *testing.B) {
	for _, c := range []struct {
		name    string
		writers int
		chats   int
	}{{"writers=1", 1, benchChats}, {"writers=16", 16, benchChats}, {"writers=128", 128, benchChats},
		{"hot/writers=128", 128, 1}} {
		b.Run(c.name, func(b *testing.B) {
			s, err := Open(Options{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			state := chats{locks: make([]sync.Mutex, c.chats), versions: make([]int64, c.chats)}
			payload, text := make([]byte, benchPayload), string(slices.Repeat([]byte("x"), benchPayload))
			expires := time.Now().Add(24 * time.Hour).Unix()
			run(b, c.writers, func(i int64) {
				n := int(uint64(i) * 0x9e3779b97f4a7c15 >> 33 % uint64(c.chats))
				m := send{chat: fmt.Sprintf("chat_%026d", n), user: fmt.Sprintf("user_%026d", i%benchUsers),
					id: fmt.Sprintf("msg_%026d", i)}
				if c.chats > 1 {
					state.locks[n].Lock()
					state.versions[n]++
					m.version = state.versions[n]
					err := s.Transact(b.Context(), m.plan(payload, text, expires))
					state.locks[n].Unlock()
					if err != nil {
						b.Error(err)
					}
					return
				}
				// All increase one head: plans follow each other at the speed of memory.
				m.version = i
				p := m.plan(payload, text, expires)
				p.Writes[2] = store.Write{Op: store.OpUpdate, Key: p.Writes[2].Key, Update: store.Update{
					Set: p.Writes[2].Item[:4], Add: []store.Increment{{Name: "version", N: 1}, {Name: "sequence", N: 1}},
				}}
				if err := s.Transact(b.Context(), p); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// run shares b.N calls among workers and reports their rate and times.
func run(b *testing.B, workers int, f func(i int64)) {
	b.Helper()
	var next atomic.Int64
	times := make([][]time.Duration, workers)
	var wg sync.WaitGroup
	b.ResetTimer()
	for w := range workers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				start := time.Now()
				f(i)
				times[w] = append(times[w], time.Since(start))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(times...)
	slices.Sort(all)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "plans/s")
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkDisk is the physical limit: append 4 KB and sync, one after the other.
func BenchmarkDisk(b *testing.B) {
	f, err := vfs.Default.Create(filepath.Join(b.TempDir(), "log"), vfs.WriteCategoryUnspecified)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	run(b, 1, func(int64) {
		if _, err := f.Write(block); err != nil {
			b.Error(err)
		}
		if err := f.SyncData(); err != nil {
			b.Error(err)
		}
	})
}

// BenchmarkIdealLog is the limit of group commit: what came together goes to a log
// with one write and one sync, and nothing else is done.
func BenchmarkIdealLog(b *testing.B) {
	for _, writers := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			f, err := vfs.Default.Create(filepath.Join(b.TempDir(), "log"), vfs.WriteCategoryUnspecified)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Write(make([]byte, 64<<20)); err != nil { // allocated once
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			queue := make(chan chan error, writers)
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				groupCommit(ctx, f, queue)
			}()
			run(b, writers, func(int64) {
				done := make(chan error, 1)
				queue <- done
				if err := <-done; err != nil {
					b.Error(err)
				}
			})
			cancel()
			<-stopped
		})
	}
}

func groupCommit(ctx context.Context, f vfs.File, queue <-chan chan error) {
	const record = 1400
	offset := int64(0)
	for {
		var group []chan error
		select {
		case <-ctx.Done():
			return
		case done := <-queue:
			group = append(group, done)
		}
		for more := true; more; {
			select {
			case done := <-queue:
				group = append(group, done)
			default:
				more = false
			}
		}
		data := make([]byte, record*len(group))
		if offset+int64(len(data)) > 64<<20 {
			offset = 0
		}
		_, err := f.WriteAt(data, offset)
		if err == nil {
			err = f.SyncData()
		}
		offset += int64(len(data))
		for _, done := range group {
			done <- err
		}
	}
}
