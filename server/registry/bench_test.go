package registry

import (
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
)

// crowded is a registry on disk with so many subjects, which share a schema.
func crowded(b *testing.B, subjects int) *Registry {
	b.Helper()
	st, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	r := New(st)
	v, err := r.Register(b.Context(), "model", Schema{Text: small}, RegisterOptions{})
	if err != nil {
		b.Fatal(err)
	}
	const workers = 64 // their writes share syncs
	version, counts := rowOf(v).Item(), table.SchemaSubject{Revision: 1, Last: 1, Live: 1, Total: 1}.Item()
	var group errgroup.Group
	for worker := range workers {
		group.Go(func() error {
			var writes []store.Write
			for i := worker; i < subjects; i += workers {
				subject := fmt.Sprintf("subject-%07d", i)
				writes = append(writes,
					store.Write{Op: store.OpPut, Key: table.SchemaKey(subject, 1), Item: version},
					store.Write{Op: store.OpPut, Key: table.SchemaSubjectKey(subject), Item: counts})
				if len(writes)+2 > store.MaxBatchWrite || i+workers >= subjects {
					if err := st.BatchWrite(b.Context(), writes); err != nil {
						return err
					}
					writes = writes[:0]
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	return r
}

// heap is what is in use after a collection, in MiB.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse) / (1 << 20)
}

// BenchmarkRegistrations measures new subjects with new schemas, by how many subjects
// there are.
func BenchmarkRegistrations(b *testing.B) {
	for _, subjects := range []int{100, 100_000} {
		b.Run(fmt.Sprint(subjects), func(b *testing.B) {
			r := crowded(b, subjects)
			n, before := 0, heap()
			for b.Loop() {
				n++
				text := fmt.Sprintf("syntax = \"proto3\"; package p%d; message M { string a = 1; }", n)
				if _, err := r.Register(b.Context(), fmt.Sprintf("new-%d", n), Schema{Text: text}, RegisterOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "registrations/s")
			b.ReportMetric(heap()-before, "grown-MiB")
		})
	}
}

// BenchmarkList measures a list of all subjects, and what it holds meanwhile.
func BenchmarkList(b *testing.B) {
	for _, subjects := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(subjects), func(b *testing.B) {
			r := crowded(b, subjects)
			before, highest := heap(), 0.0
			for b.Loop() {
				n := 0
				for _, err := range r.Subjects(b.Context(), ListOptions{}) {
					if err != nil {
						b.Fatal(err)
					}
					if n++; n == subjects/2 {
						highest = max(highest, heap()-before)
					}
				}
				if n != subjects+1 {
					b.Fatal(n)
				}
			}
			b.ReportMetric(highest, "held-MiB")
		})
	}
}
