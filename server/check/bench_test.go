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
	"github.com/parley-chat/parley/server/infra/testkit"
)

// BenchmarkCheck tells how many messages a second are checked: of 200 bytes, in 64 chats.
func BenchmarkCheck(b *testing.B) {
	const messages, chats = 20_000, 64
	h := &fixture{dir: b.TempDir()}
	eng, err := backend.Open(config(h.dir))
	testkit.Must(b, err)
	s, err := chat.New(b.Context(),
		chat.Config{Store: eng.Store, Clock: time.Now, Generation: eng.Generation, Producer: "p"})
	testkit.Must(b, err)
	testkit.Must(b, s.EnsureUser(b.Context(), "alice"))
	testkit.Must(b, s.EnsureUser(b.Context(), "bob"))
	content := fmt.Sprintf("%0200d", 1)
	var senders sync.WaitGroup
	for range chats {
		c, err := s.CreateGroup(b.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		testkit.Must(b, err)
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
	testkit.Must(b, eng.Close())
	for b.Loop() {
		o := h.open(b, false)
		report, err := check.Run(b.Context(), check.Config{Data: o, Clock: time.Now, Out: io.Discard})
		testkit.Must(b, err)
		testkit.Must(b, o.Close())
		if report.Found > 0 {
			b.Fatalf("%+v", report)
		}
		b.ReportMetric(float64(report.Messages)/report.Took.Seconds(), "messages/s")
	}
}
