package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// TestKillInCreation kills the real binary while groups get their members, chunk by
// chunk, and sends nothing again: after the restart the reconciler alone makes all
// intended people members (L-041, L-051). PARLEY_KILLS sets five times the number of
// kills, or the time for them.
func TestKillInCreation(t *testing.T) {
	t.Parallel() // it mostly waits
	const people, writers = 60, 4
	rng := rand.New(rand.NewPCG(testkit.Seed(t, rand.Uint64()), 1))
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	ctx, progress := untilStuck(t, 2*time.Minute)
	addr := p.addr
	tr := newTransport(t, false)
	alice := newUser("alice", token(t, dir, "alice"), addr, tr)
	var others []string
	for i := range people {
		name := fmt.Sprintf("user_%02d", i)
		if _, err := newUser(name, token(t, dir, name), addr, tr).chats.ListChats(ctx,
			&chatv1.ListChatsRequest{}); err != nil {
			t.Fatal(err)
		}
		others = append(others, name)
	}

	caught := 0.0 // groups that a kill left without some of their members, and that the reconciler completed
	checked := map[string]bool{}
	kills := 0
	for range testkit.NewBudget(t, "PARLEY_KILLS", 3, 5).Rounds() { // a round takes as long as five of other tests
		kills++
		progress()
		var creating sync.WaitGroup
		for w := range writers {
			creating.Go(func() {
				for i := 0; ; i++ { // until the server is gone
					_, err := alice.chats.CreateChat(ctx, &chatv1.CreateChatRequest{
						Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: fmt.Sprint("group ", w, i), MemberIds: others,
					})
					if err != nil {
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(5+rng.IntN(40)) * time.Millisecond) // the kill comes at any point of a creation
		p.kill()
		creating.Wait()
		p = launch(t, dir, addr)

		for page := ""; ; {
			res, err := call(ctx, alice.chats.ListChats, &chatv1.ListChatsRequest{PageSize: 100, PageToken: page})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range res.GetOverviews() {
				if id := o.GetChat().GetChatId(); !checked[id] {
					checked[id] = true
					if n := o.GetChat().GetMemberCount(); n != people+1 { // the pending ones are counted
						t.Fatalf("%s counts %d members", id, n)
					}
					awaitMembers(ctx, t, alice, id, people+1)
				}
			}
			if page = res.GetNextPageToken(); page == "" {
				break
			}
		}
		caught += scrape(t, p.addr, telemetry.ReconcileDone) // most are complete before a client can look
	}
	if kills >= 20 && caught == 0 {
		t.Error("no kill met a creation: this showed nothing")
	}
	t.Logf("%d kills, %d groups, %v completed by the reconciler", kills, len(checked), caught)
}

// awaitMembers waits until a chat has n members.
func awaitMembers(ctx context.Context, t *testing.T, u *user, id string, n int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%s has its %d members", id, n), func() bool {
		res, err := call(ctx, u.chats.ListMembers, &chatv1.ListMembersRequest{ChatId: id, PageSize: 100})
		testkit.Must(t, err)
		return len(res.GetMembers()) == n
	})
}
