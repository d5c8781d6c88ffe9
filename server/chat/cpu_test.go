package chat_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
)

// cpu is the time that the process has spent on a processor, in user and system mode.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// perOp shares b.N calls among callers and reports what one costs.
func perOp(b *testing.B, callers int, call func(caller, i int)) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	before := cpu(b)
	b.ResetTimer()
	for c := range callers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
				call(c, i)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
}

func benchGroups(b *testing.B, svc *chat.Service, users []string, n int) []string {
	b.Helper()
	ids := make([]string, n)
	for i := range ids {
		g := chat.CreateGroup{Caller: users[0], Name: "g", Members: users[1:]}
		c, err := svc.CreateGroup(b.Context(), g)
		if err != nil {
			b.Fatal(err)
		}
		ids[i] = c.ChatID
	}
	return ids
}

// BenchmarkSendCPU measures what a durable send costs 128 callers over 256 chats, with ids
// that the clients make, and with those that the server makes.
func BenchmarkSendCPU(b *testing.B) {
	for _, own := range []bool{true, false} {
		b.Run(fmt.Sprintf("client_ids=%v", own), func(b *testing.B) {
			users := numbered("u", 2)
			svc := benchService(b, users)
			ids, text := benchGroups(b, svc, users, 256), strings.Repeat("x", 128)
			perOp(b, 128, func(_, i int) {
				m := chat.Send{Caller: users[i/256%2], ChatID: ids[i%256], Content: text}
				if own {
					m.ClientMessageID = fmt.Sprintf("%036d", i)
				}
				if _, err := svc.Send(b.Context(), m); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// BenchmarkReceipts measures a message and the marks of all ten members of its chat. Each
// operation is one message with its ten marks, which come at once.
func BenchmarkReceipts(b *testing.B) {
	users := numbered("u", 10)
	svc := benchService(b, users)
	ids := benchGroups(b, svc, users, 16)
	perOp(b, 4, func(caller, i int) {
		chatID := ids[caller]
		sent, err := svc.Send(b.Context(), chat.Send{Caller: users[i%10], ChatID: chatID, Content: "hello"})
		if err != nil {
			b.Error(err)
			return
		}
		var wg sync.WaitGroup
		for _, u := range users {
			wg.Go(func() {
				m := chat.MarkRead{Caller: u, ChatID: chatID, Sequence: sent.Sequence}
				if _, err := svc.MarkRead(b.Context(), m); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// BenchmarkMarksOfTwo measures a message in a direct chat and the mark of the other person,
// which is reported to the sender or not, in sixteen chats at once.
func BenchmarkMarksOfTwo(b *testing.B) {
	for _, receipts := range []bool{false, true} {
		b.Run(fmt.Sprintf("told=%v", receipts), func(b *testing.B) {
			const chats = 16
			users := numbered("u", 2*chats)
			svc := benchService(b, users, func(c *chat.Config) { c.NoReadReceipts = !receipts })
			ids := make([]string, chats)
			for i := range ids {
				c, err := svc.CreateDirect(b.Context(), chat.CreateDirect{Caller: users[2*i], Other: users[2*i+1]})
				if err != nil {
					b.Fatal(err)
				}
				ids[i] = c.ChatID
			}
			perOp(b, chats, func(caller, i int) {
				sender, reader := users[2*caller+i%2], users[2*caller+1-i%2]
				sent, err := svc.Send(b.Context(), chat.Send{Caller: sender, ChatID: ids[caller], Content: "hello"})
				if err == nil {
					_, err = svc.MarkRead(b.Context(),
						chat.MarkRead{Caller: reader, ChatID: ids[caller], Sequence: sent.Sequence})
				}
				if err != nil {
					b.Error(err)
				}
			})
		})
	}
}
