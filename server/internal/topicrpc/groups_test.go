package topicrpc

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// groupCall is a call of users that names a group, by its descriptor.
type groupCall struct {
	protoreflect.MethodDescriptor
	session bool // it names the group by a session
}

// groupCalls finds all calls that name a group: by a field group, in an Attach, or by a session.
// Operators' calls are on a listener of their own, and ask for no role.
func groupCalls(t *testing.T) (all []groupCall) {
	t.Helper()
	for _, file := range []protoreflect.FileDescriptor{
		topicv1.File_parley_topic_v1_topic_service_proto, topicv1.File_parley_topic_v1_subscription_service_proto,
		topicv1.File_parley_topic_v1_consumer_service_proto, topicv1.File_parley_topic_v1_backfill_service_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				has := func(name protoreflect.Name) bool { return m.Input().Fields().ByName(name) != nil }
				if has("group") || has("attach") {
					all = append(all, groupCall{MethodDescriptor: m})
				}
				if has("session") {
					all = append(all, groupCall{m, true})
				}
			}
		}
	}
	if len(all) < 20 {
		t.Fatalf("%d calls name a group: the descriptors are read wrongly", len(all))
	}
	return all
}

// needed are values of fields without which a request for any group is invalid.
var needed = map[protoreflect.Name]map[string]any{
	"SeekSubscriptionRequest":   {"to": map[string]any{"latest": true}},
	"UpdateSubscriptionRequest": {"config": map[string]any{"selection": "SELECTION_HASH"}},
	"AckRequest":                {"set": map[string]any{"positions": []any{map[string]any{"base": "0"}}}},
	"NackRequest":               {"set": map[string]any{"positions": []any{map[string]any{"base": "0"}}}},
	"AddCreditsRequest":         {"credits": map[string]any{"messages": "1"}},
}

// body is a request of a call for a group or a session.
func (c groupCall) body(topic, group, session string) map[string]any {
	fields, body := c.Input().Fields(), map[string]any{}
	put := func(name protoreflect.Name, value any) {
		if fields.ByName(name) != nil {
			body[string(name)] = value
		}
	}
	put("topic", topic)
	put("group", group)
	put("attach", map[string]any{"topic": topic, "group": group})
	if c.session {
		put("session", session)
	}
	maps.Copy(body, needed[c.Input().Name()])
	return body
}

// call makes a call and returns the reason of its refusal; of a stream, that of its end, or "" once
// it has begun.
func (c groupCall) call(t *testing.T, u *userClients, body map[string]any) string {
	t.Helper()
	b, err := json.Marshal(body)
	must(t, err)
	stream := c.IsStreamingClient() || c.IsStreamingServer()
	kind := "application/json"
	if stream {
		kind = "application/connect+json"
		b = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		fmt.Sprintf("http://%s/%s/%s", u.addr, c.Parent().FullName(), c.Name()), bytes.NewReader(b))
	must(t, err)
	req.Header.Set("Content-Type", kind)
	res, err := u.client.Do(req)
	must(t, err)
	defer res.Body.Close()
	if stream {
		var head [5]byte
		if _, err := io.ReadFull(res.Body, head[:]); err != nil {
			t.Fatalf("%s: %v", c.Name(), err)
		}
		if head[0]&2 == 0 { // not the end of the stream
			return ""
		}
	}
	text, err := io.ReadAll(res.Body)
	must(t, err)
	_, after, _ := strings.Cut(string(text), `"reason":"`)
	reason, _, _ := strings.Cut(after, `"`)
	if failed := stream && strings.Contains(string(text), `"error"`) || res.StatusCode >= 400; failed && reason == "" {
		t.Fatalf("%s: %s %s", c.Name(), res.Status, text)
	}
	return reason
}

// Every call that names a group is refused to a subscriber of other groups, and not to one of that
// group. A session belongs to its principal, for any group.
func TestEveryCallOfAGroup(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice, eve, bob := w.as("alice"), w.as("eve"), w.as("bob")
	for i, c := range groupCalls(t) {
		topic := fmt.Sprintf("t%d", i)
		alice.topic(topic, pubSub, "billing", "audit")
		for who, groups := range map[string][]string{"eve": {"audit", "audit-*"}, "bob": {"bill*"}} {
			_, err := alice.topics.SetBinding(t.Context(), &topicv1.SetBindingRequest{Topic: topic, Principal: who,
				Role: topicv1.Role_ROLE_SUBSCRIBER, Groups: groups})
			must(t, err)
		}
		m := &member{userClients: bob, topic: topic, group: "billing"}
		m.pull(1, 0)
		name := fmt.Sprintf("%s, by session %t", c.Name(), c.session)
		body := c.body(topic, "billing", m.session)
		want := "TOPIC_FORBIDDEN"
		if c.session {
			want = "SESSION_GONE"
		}
		testkit.Equal(t, name+": a subscriber of another group", c.call(t, eve, body), want)
		if got := c.call(t, bob, body); got == "TOPIC_FORBIDDEN" || got == "SESSION_GONE" || got == "INVALID_ARGUMENT" {
			t.Errorf("%s: a subscriber of the group is refused with %s", name, got)
		}
	}
}
