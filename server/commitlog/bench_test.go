package commitlog_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
)

// cpu is what the process has used so far.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure shares b.N calls among workers and reports the rate of messages and what each
// costs.
func measure(b *testing.B, workers, messages int, f func() error) {
	b.Helper()
	b.ReportAllocs()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	before := cpu()
	for range workers {
		wg.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := f(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	total := float64(b.N) * float64(messages)
	b.ReportMetric(total/b.Elapsed().Seconds(), "messages/s")
	b.ReportMetric(float64(cpu()-before)/total, "cpu-ns/message")
}

func someMessages(count int) (list []*commitlog.Message) {
	rng := rand.New(rand.NewPCG(1, 1)) // nothing that can be compressed
	for n := range count {
		payload := make([]byte, 200)
		for i := range payload {
			payload[i] = byte(rng.Uint32())
		}
		list = append(list, &commitlog.Message{Key: fmt.Sprintf("key-%d", n%100), Type: "order.placed", Payload: payload})
	}
	return list
}

// BenchmarkAppend measures durable publishes to one partition, beside a row of the store
// and a sync of the disk, which one publisher cannot beat.
func BenchmarkAppend(b *testing.B) {
	for _, publishers := range []int{1, 16, 128} {
		for _, count := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("publishers=%d/messages=%d", publishers, count), func(b *testing.B) {
				log, s := openDir(b, b.TempDir(), time.Now)
				defer s.Close()
				list := someMessages(count)
				measure(b, publishers, count, func() error {
					_, err := log.Append(b.Context(), []commitlog.Append{{Partition: home, Messages: list}})
					return err
				})
			})
		}
		for _, count := range []int{1, 100} {
			for _, spread := range []bool{false, true} { // the number has another partition than the messages
				b.Run(fmt.Sprintf("publishers=%d/producer/messages=%d/spread=%v", publishers, count, spread), func(b *testing.B) {
					benchmarkNumbered(b, publishers, count, spread)
				})
			}
		}
		b.Run(fmt.Sprintf("publishers=%d/row", publishers), func(b *testing.B) {
			_, s := openDir(b, b.TempDir(), time.Now)
			defer s.Close()
			var number atomic.Int64
			item := store.NewItem(store.Attr{Name: "payload", Value: store.Bytes(make([]byte, 200))})
			measure(b, publishers, 1, func() error {
				key := store.Key{Table: store.Messages, PK: "chat", SK: fmt.Sprintf("%016d", number.Add(1))}
				put := store.Write{Op: store.OpPut, Key: key, Item: item, Fresh: true}
				return s.Transact(b.Context(), store.Plan{Writes: []store.Write{put}})
			})
		})
	}
	b.Run("sync", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "log"))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		block := make([]byte, 4096)
		measure(b, 1, 1, func() error {
			if _, err := f.Write(block); err != nil {
				return err
			}
			return f.Sync()
		})
	})
}

func benchmarkNumbered(b *testing.B, publishers, count int, spread bool) {
	log, s := openDir(b, b.TempDir(), time.Now)
	defer s.Close()
	var number atomic.Int64
	list := someMessages(count)
	measure(b, publishers, count, func() error {
		n := number.Add(1)
		a := commitlog.Append{Partition: home, Messages: list, Request: commitlog.HashOf(list),
			Producer: commitlog.Producer{ID: fmt.Sprint("producer ", n%int64(publishers)), Number: n}}
		appends := []commitlog.Append{a}
		if a.Messages = nil; spread {
			a.Partition.Number++
			appends = append(appends, a)
		}
		_, err := log.Append(b.Context(), appends)
		return err
	})
}

// BenchmarkRead measures reading a backlog from its start, in batches as they were
// published.
func BenchmarkRead(b *testing.B) {
	for _, count := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("messages=%d", count), func(b *testing.B) {
			log, s := openDir(b, b.TempDir(), time.Now)
			defer s.Close()
			const total = 200_000
			list := someMessages(count)
			size := 0
			for range total / count / 100 {
				many := make([]commitlog.Append, 100)
				for i := range many {
					many[i] = commitlog.Append{Partition: home, Messages: list}
				}
				if count == 1000 {
					many = many[:10]
				}
				got, err := log.Append(b.Context(), many)
				if err != nil {
					b.Fatal(err)
				}
				size = got[0].Batch.Size(0, count)
			}
			_, end, err := log.Bounds(b.Context(), home)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size) * end / int64(count))
			measure(b, 1, int(end), func() error {
				for next := int64(0); next < end; {
					got, err := log.Read(b.Context(), home, next, 1<<20)
					if err != nil || len(got) == 0 {
						return fmt.Errorf("%d batches, %w", len(got), err)
					}
					next = got[len(got)-1].End()
				}
				return nil
			})
		})
	}
}

// BenchmarkBacklog writes and reads b.N messages of 60 bytes, in batches of 1,000, and
// reports what they leave on the heap.
func BenchmarkBacklog(b *testing.B) {
	log, s := openDir(b, b.TempDir(), time.Now)
	defer s.Close()
	list := someMessages(1000)
	for _, m := range list {
		m.Payload = m.Payload[:60]
	}
	before := heap()
	for range b.N / 1000 {
		mustAppend(b, log, home, list...)
	}
	for next := int64(0); next < int64(b.N/1000*1000); {
		got, err := log.Read(b.Context(), home, next, 1<<20)
		if err != nil || len(got) == 0 {
			b.Fatal(len(got), err)
		}
		next = got[len(got)-1].End()
	}
	b.ReportMetric(float64(heap()-before)/1024, "heap-KB")
}
