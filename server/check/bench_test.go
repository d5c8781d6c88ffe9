package check_test

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/check"
)

// BenchmarkCheck tells how many messages a second are checked: of 200 bytes, in 64 chats.
func BenchmarkCheck(b *testing.B) {
	const messages, chats = 20_000, 64
	h := &harness{dir: b.TempDir()}
	eng, err := backend.Open(config(h.dir))
	must(b, err)
	s, err := chat.New(b.Context(), chat.Config{Store: eng.Store, Clock: time.Now, Generation: eng.Generation, Producer: "p"})
	must(b, err)
	must(b, s.EnsureUser(b.Context(), "alice"))
	must(b, s.EnsureUser(b.Context(), "bob"))
	content := fmt.Sprintf("%0200d", 1)
	var senders sync.WaitGroup
	for range chats {
		c, err := s.CreateGroup(b.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		must(b, err)
		senders.Go(func() {
			for range messages / chats {
				if _, err := s.Send(b.Context(), chat.Send{Caller: "alice", ChatID: c.ChatID, Content: content}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	senders.Wait()
	must(b, eng.Close())
	for b.Loop() {
		o := h.open(b, false)
		report, err := check.Run(b.Context(), check.Config{Data: o, Clock: time.Now, Out: io.Discard})
		must(b, err)
		must(b, o.Close())
		if report.Found > 0 {
			b.Fatalf("%+v", report)
		}
		b.ReportMetric(float64(report.Messages)/report.Took.Seconds(), "messages/s")
	}
}
