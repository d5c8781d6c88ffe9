package view_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// BenchmarkSync measures Sync on the embedded engine: what a client does that was
// away, with one page of changes, and the first page of a list of all chats.
func BenchmarkSync(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("chats=%d", n), func(b *testing.B) {
			s, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			now := time.Now()
			writeChats(b, s, "bob", n, now)
			r := view.New(view.Config{Store: s, Generation: generation, TokenKey: make([]byte, view.KeySize), Clock: time.Now})
			for name, req := range map[string]*deliveryv1.SyncRequest{
				"changed": {Token: r.NewToken("bob", now.Add(-time.Hour))},
				"all":     {},
			} {
				b.Run(name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						res, err := r.Sync(b.Context(), "bob", req)
						if err != nil || len(res.GetChats()) == 0 {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}

// writeChats writes the rows of a user's chats; ten of them changed in the last
// hour.
func writeChats(b *testing.B, s store.Store, user string, n int, now time.Time) {
	var writes []store.Write
	put := func(k store.Key, it store.Item) {
		writes = append(writes, store.Write{Op: store.OpPut, Key: k, Item: it})
	}
	for i := range n {
		id := fmt.Sprintf("chat_%026d", i*7919)
		at := now.Add(-time.Duration(i) * 6 * time.Minute).UnixMilli()
		put(table.HeadKey(id), table.Head{
			Version: 100, Sequence: 90, MembershipVersion: 10, ChangedAt: at, LastSender: "ann", LastPreview: "The last message of a chat, as long as such messages are.",
		}.Item())
		put(table.ChatKey(id), table.Chat{
			Type: table.Group, Name: "A group of people", CreatedBy: "ann", Status: table.Active, History: table.All, MemberCount: 12, CreatedAt: at, UpdatedAt: at, Version: 10,
		}.Item())
		put(table.UserChatKey(user, id), table.UserChat{History: table.All, ReadSequence: 80, DeliveredSequence: 90, ChangedAt: at}.Item())
		if len(writes) >= store.MaxBatchWrite-3 || i == n-1 {
			if err := s.BatchWrite(context.Background(), writes); err != nil {
				b.Fatal(err)
			}
			writes = writes[:0]
		}
	}
}
