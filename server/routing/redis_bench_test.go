package routing_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/routing"
)

// BenchmarkRedisLookup looks up the members of a chat of n.
func BenchmarkRedisLookup(b *testing.B) {
	addr := os.Getenv("PARLEY_TEST_REDIS")
	if addr == "" {
		b.Skip("not run: PARLEY_TEST_REDIS is not set")
	}
	r, err := routing.OpenRedis(routing.Options{URL: addr, Prefix: "bench:"})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	s := routing.Server{"a", "h:1", "g", 1}
	if err := r.Claim(b.Context(), s, time.Minute); err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{2, 100} {
		var users []string
		for i := range n {
			users = append(users, fmt.Sprint("u", i))
		}
		if _, err := r.Put(b.Context(), s, users, time.Minute); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if got, err := r.Lookup(b.Context(), users); err != nil || len(got) != n {
						b.Error(len(got), err)
						return
					}
				}
			})
		})
	}
}
