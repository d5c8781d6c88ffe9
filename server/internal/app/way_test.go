package app_test

import (
	"context"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// wayRow is a row of DESIGN.md's table of the way of a message: a package, relative to server/, and a function.
var wayRow = regexp.MustCompile("(?m)^\\| \\d+ \\| `([^`]+)` `([^`]+)`")

// Functions between which the way is followed. A stream that catches up encodes frames outside of liveStream.
const (
	sendCall   = "internal/api messageHandler.SendMessage"
	queued     = "delivery sendQueue.Push"
	liveStream = "internal/api sender.follow"
	encoded    = "internal/codec Batch.AppendWire"
)

// DESIGN.md lists each function on the way of a message: what a server calls, as the stacks of its allocations
// show, from the call of SendMessage to the bytes on another member's stream.
func TestWayOfAMessage(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../DESIGN.md"))(t)
	var listed []string
	for _, m := range wayRow.FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, m[1]+" "+m[2])
	}
	all := stacksOfSends(t)
	store, hub, stream := between(all, sendCall, "store/embedded Store.Transact"), between(all, sendCall, queued),
		between(all, liveStream, encoded)
	if store == nil || hub == nil || stream == nil {
		t.Fatalf("got the ways %q, %q and %q among %d stacks, want all three", store, hub, stream, len(all))
	}
	same := 0
	for same < min(len(store), len(hub)) && store[same] == hub[same] {
		same++
	}
	way := slices.Concat(store, hub[same:], between(all, "internal/api pump", liveStream), stream[1:])
	if !slices.Equal(way, listed) {
		t.Errorf("got the way\n%s\nwant what DESIGN.md lists:\n%s", strings.Join(way, "\n"), strings.Join(listed, "\n"))
	}
}

// publishedWay are the functions between which the way of a published message is followed.
var publishedWay = [][2]string{
	{"internal/topicrpc topics.Publish", "store/embedded/records Records.Commit"},
	{"internal/topicrpc sender.run", "topic/internal/serving Group.deliver"},
	{"internal/topicrpc sender.run", "internal/topicrpc deliveryFrame.AppendWire"},
	{"internal/topicrpc consumers.Ack", "topic/internal/machine Member.Ack"},
	{"topic/internal/serving Flusher.Run", "store/embedded Store.Transact"},
}

// The decisions on topics list each function on the way of a published message: to the store, from there to a
// member's stream, and of its acknowledgement to the store.
func TestWayOfAPublishedMessage(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../topic/DECISIONS.md"))(t)
	var listed []string
	for _, m := range wayRow.FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, m[1]+" "+m[2])
	}
	all := stacksOfPublishes(t)
	var way []string
	for _, part := range publishedWay {
		found := between(all, part[0], part[1])
		if found == nil {
			t.Errorf("got no way from %s to %s among %d stacks, want one", part[0], part[1], len(all))
		}
		for _, name := range found {
			if !slices.Contains(way, name) { // a closure has the name of its function
				way = append(way, name)
			}
		}
	}
	if !slices.Equal(way, listed) {
		t.Errorf("got the way\n%s\nwant what DECISIONS.md lists:\n%s", strings.Join(way, "\n"), strings.Join(listed, "\n"))
	}
}

// stacksOfPublishes are the stacks of what a server allocates while messages are published, delivered and
// acknowledged.
func stacksOfPublishes(t *testing.T) (all [][]string) {
	dir := t.TempDir()
	addr, _ := inProcess(t, nil, "--listen", "127.0.0.1:0", "--data-dir", dir, "--topic-creators", "alice")
	c := newTopicClients(t, dir, addr)
	testkit.Value(c.topics.ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: "news",
		Config: &topicv1.TopicConfig{Partitions: 1, Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}}))(t)
	testkit.Value(c.subscriptions.CreateSubscription(t.Context(),
		&topicv1.CreateSubscriptionRequest{Topic: "news", Group: "a"}))(t)
	defer recordEachAllocation()()
	ctx, cancel := context.WithCancel(t.Context())
	stream := testkit.Value(c.consumers.Consume(ctx,
		&topicv1.ConsumeRequest{Attach: &topicv1.Attach{Topic: "news", Group: "a"}}))(t)
	var consuming, publishing sync.WaitGroup
	consuming.Go(func() {
		var session string
		for stream.Receive() { // until its context ends
			if a := stream.Msg().GetAttached(); a != nil {
				session = a.GetSession()
			} else if d := stream.Msg().GetDelivery(); d != nil {
				_, _ = c.consumers.Ack(ctx, &topicv1.AckRequest{Session: session, Set: &topicv1.AckSet{
					Positions: []*topicv1.Positions{{Partition: d.GetPartition(), Base: d.GetBase(),
						Count: int64(len(d.GetMessages()))}}}})
			}
		}
	})
	const publishes, rounds = 100, 20
	for range rounds {
		for range publishes {
			publishing.Go(func() {
				_, err := c.topics.Publish(t.Context(), &topicv1.PublishRequest{Topic: "news",
					Messages: []*topicv1.TopicMessage{{Payload: []byte("hello")}}})
				if err != nil {
					t.Error(err)
				}
			})
		}
		publishing.Wait()
		all = allocations()
		if !slices.ContainsFunc(publishedWay, func(p [2]string) bool { return between(all, p[0], p[1]) == nil }) {
			break
		}
	}
	cancel()
	consuming.Wait()
	return all
}

// recordEachAllocation makes the memory profile show each allocation until the function that it returns is called.
func recordEachAllocation() (stop func()) {
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1                      //nolint:reassign // each allocation is recorded, as its comment says
	return func() { runtime.MemProfileRate = rate } //nolint:reassign // and no longer
}

// stacksOfSends are the stacks of what a server allocates while messages are sent, each from the outermost function
// on. Many are sent at a time, until a queue has grown: that shows where frames enter it.
func stacksOfSends(t *testing.T) (all [][]string) {
	dir := t.TempDir()
	addr, _ := inProcess(t, nil, "--listen", "127.0.0.1:0", "--data-dir", dir)
	alice := newUser("alice", token(t, dir, "alice"), addr, newTransport(t, true))
	bob := newUser("bob", token(t, dir, "bob"), addr, newTransport(t, true))
	testkit.Value(bob.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{}))(t) // writes the user's row
	chat := testkit.Value(alice.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: []string{"bob"}}))(t).GetOverview().GetChat().GetChatId()
	stream := testkit.Value(bob.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{}))(t)
	for live := false; !live && stream.Receive(); {
		for _, f := range stream.Msg().GetFrames() {
			live = live || f.GetHeartbeat() != nil
		}
	}
	defer recordEachAllocation()()
	var reading, sending sync.WaitGroup
	reading.Go(func() {
		for stream.Receive() { // until it is closed
		}
	})
	const sends, rounds = 100, 20 // a user may have 128 requests under way in a chat
	for range rounds {
		for range sends {
			sending.Go(func() {
				_, err := alice.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: chat, Content: "hello"})
				if err != nil {
					t.Error(err)
				}
			})
		}
		sending.Wait()
		if all = allocations(); between(all, sendCall, queued) != nil && between(all, liveStream, encoded) != nil {
			break
		}
	}
	_ = stream.Close()
	reading.Wait()
	return all
}

// allocations are the stacks of what this process has allocated.
func allocations() (all [][]string) {
	runtime.GC() // a profile shows what was allocated before the last but one
	runtime.GC()
	n, _ := runtime.MemProfile(nil, true)
	records := make([]runtime.MemProfileRecord, 2*n)
	n, _ = runtime.MemProfile(records, true)
	for _, r := range records[:n] {
		all = append(all, ownFunctions(r.Stack()))
	}
	return all
}

// ownFunctions are our functions of a stack, the outermost first, as DESIGN.md names them.
func ownFunctions(stack []uintptr) (list []string) {
	frames := runtime.CallersFrames(stack)
	for more := len(stack) > 0; more; {
		var f runtime.Frame
		f, more = frames.Next()
		name, ours := strings.CutPrefix(f.Function, "github.com/parley-chat/parley/server/")
		if !ours {
			continue
		}
		dot := strings.LastIndexByte(name, '/') + 1
		dot += strings.IndexByte(name[dot:], '.')
		function, _, _ := strings.Cut(name[dot+1:], ".func") // without the numbers of closures
		list = append(list, name[:dot]+" "+strings.NewReplacer("(*", "", ")", "").Replace(function))
	}
	slices.Reverse(list)
	return list
}

// between returns the shortest way from one function to another, nil if no stack has both.
func between(all [][]string, from, to string) (shortest []string) {
	for _, list := range all {
		first, last := slices.Index(list, from), slices.Index(list, to)
		if first >= 0 && last > first && (shortest == nil || last-first < len(shortest)-1) {
			shortest = list[first : last+1]
		}
	}
	return shortest
}
