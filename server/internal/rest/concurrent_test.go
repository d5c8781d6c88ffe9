package rest_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// together makes n requests at once and returns what they got.
func together(n int, do func(i int) answer) []answer {
	all := make([]answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { all[i] = do(i) })
	}
	wg.Wait()
	return all
}

// tally counts answers by status, and errors by reason.
func tally(all []answer) map[string]int {
	n := map[string]int{}
	for _, a := range all {
		n[fmt.Sprint(a.status, a.reason())]++
	}
	return n
}

// L-017, L-020: of all who create the same direct chat at once, from both sides,
// with and without keys, one creates it and all get it.
func TestOneDirectChat(t *testing.T) {
	for _, n := range []int{2, 7, 64} {
		w := newFixture(t)
		all := together(n, func(i int) answer {
			from, to := "ann", "bob"
			if i%2 == 1 {
				from, to = to, from
			}
			var headers []string
			if i%3 == 1 {
				headers = []string{"Idempotency-Key", fmt.Sprint("k", i)}
			}
			return w.do(from, "POST", chats, `{"type":"CHAT_TYPE_DIRECT","memberIds":["`+to+`"]}`, headers...)
		})
		got := tally(all)
		if got["201"] != 1 || got["200"] != n-1 {
			t.Fatalf("%d at once: %v", n, got)
		}
		for _, a := range all {
			testkit.Equal(t, "chat", a.at("overview", "chat", "chatId"), all[0].at("overview", "chat", "chatId"))
			testkit.Equal(t, "header", a.header.Get("X-Idempotent-Replay") == "true", a.status == 200)
		}
	}
}

// L-072, L-183: a chat takes its last member once, and a member once.
func TestConcurrentMembers(t *testing.T) {
	w := newFixture(t)
	var others []string
	for i := range 148 {
		u := fmt.Sprint("user", i)
		w.must(w.chats.EnsureUser(t.Context(), u))
		others = append(others, u)
	}
	path := w.group("bob")
	body := func(user string) string {
		b, err := json.Marshal(map[string]string{"userId": user})
		w.must(err)
		return string(b)
	}
	all := together(2, func(int) answer { return w.do("ann", "POST", path+"/members", body("cid")) })
	if got := tally(all); got["201"] != 1 || got["409ALREADY_MEMBER"] != 1 {
		t.Fatalf("the same user twice: %v", got)
	}
	full := w.group(others[:98]...)
	all = together(50, func(i int) answer { return w.do("ann", "POST", full+"/members", body(others[98+i])) })
	if got := tally(all); got["201"] != 1 || got["400CHAT_FULL"] != 49 {
		t.Fatalf("the last place: %v", got)
	}
	testkit.Equal(t, "members", w.do("ann", "GET", full, "").want(200, "").at("overview", "chat", "memberCount"), 100.0)
}
