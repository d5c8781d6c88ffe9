package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/internal/racetest"
)

// secBodies are requests that succeed, by procedure: of ann, the owner of a chat and
// administrator of a topic, or of whom stands before a colon: a member, a back end, or somebody who has just
// signed in, and whose session or account the procedure may end. Whatever is in braces is theirs.
var secBodies = map[string]string{
	"chat.v1.ChatService/AddMember":        `{"chatId":"{chat}","userId":"{newcomer}"}`,
	"chat.v1.ChatService/ArchiveChat":      `{"chatId":"{chat}"}`,
	"chat.v1.ChatService/CreateChat":       `{"type":2,"name":"n","memberIds":["{user}"]}`,
	"chat.v1.ChatService/GetChat":          `{"chatId":"{chat}"}`,
	"chat.v1.ChatService/LeaveChat":        `amy:{"chatId":"{chat}"}`,
	"chat.v1.ChatService/ListChats":        `{}`,
	"chat.v1.ChatService/ListMembers":      `{"chatId":"{chat}"}`,
	"chat.v1.ChatService/MuteChat":         `{"chatId":"{chat}"}`,
	"chat.v1.ChatService/RemoveMember":     `{"chatId":"{chat}","userId":"{user}"}`,
	"chat.v1.ChatService/UnarchiveChat":    `{"chatId":"{chat}"}`,
	"chat.v1.ChatService/UnmuteChat":       `{"chatId":"{chat}"}`,
	"chat.v1.ChatService/UpdateChat":       `{"chatId":"{chat}","name":"other"}`,
	"chat.v1.ChatService/UpdateMemberRole": `{"chatId":"{chat}","userId":"{user}","role":2}`,

	"delivery.v1.DeliveryService/Ack":       `{"streamId":"{stream}","readMarks":[{"chatId":"{chat}","sequence":"1"}]}`,
	"delivery.v1.DeliveryService/Extend":    `{"streamId":"{stream}"}`,
	"delivery.v1.DeliveryService/Subscribe": `{"knownChats":[{"chatId":"{chat}","version":"1"}]}`,
	"delivery.v1.DeliveryService/Sync":      `{}`,

	"auth.v1.AuthService/CreateStreamTicket": `{}`,
	"auth.v1.AuthService/ExchangeToken":      `{"token":"x.y.z"}`,
	"auth.v1.AuthService/ListSessions":       `{}`,
	"auth.v1.AuthService/Refresh":            `{"refreshToken":"{refresh}"}`,
	"auth.v1.AuthService/RequestCode":        `{"identifier":"{fresh}@example.com"}`,
	"auth.v1.AuthService/RevokeAllSessions":  `gone:{}`,
	"auth.v1.AuthService/RevokeSession":      `gone:{"sessionId":"{session}"}`,
	"auth.v1.AuthService/SignOut":            `gone:{}`,
	"auth.v1.AuthService/VerifyCode":         `{"identifier":"{proof}","requestId":"{request}","code":"{code}"}`,

	"service.v1.BackendService/CreateUser":     `shop:{"userId":"{customer}"}`,
	"service.v1.BackendService/EndUserSession": `shop:{"sessionId":"{session}"}`,
	"service.v1.BackendService/IssueUserToken": `shop:{"userId":"{customer}","sessionId":"{session}"}`,

	"user.v1.UserService/AcceptInvitation":   `gone:{"chatId":"{chat}"}`,
	"user.v1.UserService/BatchGetProfiles":   `{"knownProfiles":[{"userId":"{user}"}]}`,
	"user.v1.UserService/BlockUser":          `gone:{"userId":"{user}"}`,
	"user.v1.UserService/DeclineInvitation":  `gone:{"chatId":"{chat}"}`,
	"user.v1.UserService/DeleteAccount":      `gone:{"confirmUserId":"{gone}"}`,
	"user.v1.UserService/ExportData":         `{}`,
	"user.v1.UserService/GetProfile":         `{"userId":"{user}"}`,
	"user.v1.UserService/GetSettings":        `{}`,
	"user.v1.UserService/InviteToChat":       `{"chatId":"{chat}","userId":"{newcomer}"}`,
	"user.v1.UserService/ListBlocked":        `{}`,
	"user.v1.UserService/ListInvitations":    `{}`,
	"user.v1.UserService/LookupByHandle":     `{"handle":"{handle}"}`,
	"user.v1.UserService/LookupByIdentifier": `{"identifier":"{host}"}`,
	"user.v1.UserService/SetHandle":          `gone:{"handle":"{fresh}"}`,
	"user.v1.UserService/UnblockUser":        `gone:{"userId":"{user}"}`,
	"user.v1.UserService/UpdateProfile":      `{"displayName":"Ann"}`,
	"user.v1.UserService/UpdateSettings":     `{"whoMayAdd":1,"findableByIdentifier":false}`,

	"message.v1.MessageService/ListChanges":  `{"chatId":"{chat}"}`,
	"message.v1.MessageService/ListMessages": `{"chatId":"{chat}"}`,
	"message.v1.MessageService/MarkRead":     `{"chatId":"{chat}","sequence":"1"}`,
	"message.v1.MessageService/SendMessage":  `{"chatId":"{chat}","content":"x"}`,

	"analytics.v1.AnalyticsService/Record": `{"event":{"searchClick":{"searchId":"s","resultId":"r","userId":"ann"}}}`,
	"analytics.v1.AnalyticsService/RecordBatch": `{"events":[
		{"searchImpression":{"searchId":"s","userId":"ann","query":"q","resultIds":["r"]}},
		{"searchResultSummary":{"searchId":"s","userId":"ann","query":"q"}},
		{"searchClick":{"searchId":"s","userId":"ann","resultId":"r"}},
		{"searchDwell":{"searchId":"s","userId":"ann","resultId":"r"}},
		{"acImpression":{"searchId":"s","userId":"ann","prefix":"p","suggestions":["p1"]}},
		{"acSelect":{"searchId":"s","userId":"ann","prefix":"p","suggestion":"p1"}}]}`,

	"topic.v1.TopicService/ConfigureTopic":   `{"topic":"{topic}","config":{"messageRetention":"7200s"}}`,
	"topic.v1.TopicService/DeleteTopic":      `{"topic":"{topic}"}`,
	"topic.v1.TopicService/GetMessageStatus": `{"topic":"{topic}","messageId":"0-0"}`,
	"topic.v1.TopicService/GetMessage":       `{"topic":"{topic}","messageId":"0-0"}`,
	"topic.v1.TopicService/BrowseMessages":   `{"topic":"{topic}"}`,
	"topic.v1.TopicService/PurgeMessages":    `{"topic":"{topic}","before":{"latest":true}}`,
	"topic.v1.TopicService/GetProducer":      `{"topic":"{topic}","producer":"p"}`,
	"topic.v1.TopicService/GetTopic":         `{"topic":"{topic}"}`,
	"topic.v1.TopicService/ListBindings":     `{"topic":"{topic}"}`,
	"topic.v1.TopicService/ListTopics":       `{}`,
	"topic.v1.TopicService/Publish":          `{"topic":"{topic}","messages":[{"payload":"eA=="}]}`,
	"topic.v1.TopicService/RecommendMode":    `{}`,
	"topic.v1.TopicService/RemoveBinding":    `{"topic":"{topic}","principal":"{user}"}`,
	"topic.v1.TopicService/SetBinding":       `{"topic":"{topic}","principal":"{user}","role":1}`,

	"topic.v1.SubscriptionService/CancelSubscription": `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.SubscriptionService/CreateSubscription": `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.SubscriptionService/GetSubscription":    `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.SubscriptionService/Heartbeat":          `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.SubscriptionService/ListSubscriptions":  `{"topic":"{topic}"}`,
	"topic.v1.SubscriptionService/PauseSubscription":  `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.SubscriptionService/ResumeSubscription": `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.SubscriptionService/SeekSubscription":   `{"topic":"{topic}","group":"{group}","to":{"latest":true}}`,
	"topic.v1.SubscriptionService/UnparkKeys":         `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.SubscriptionService/UpdateSubscription": `{"topic":"{topic}","group":"{group}","config":{"retry":{"lease":"60s"}}}`,

	"topic.v1.ConsumerService/Ack":         `{"session":"{session}","set":{"positions":[{"base":"0"}]}}`,
	"topic.v1.ConsumerService/AddCredits":  `{"session":"{session}","credits":{"messages":"1"}}`,
	"topic.v1.ConsumerService/Consume":     `{"attach":{"topic":"{topic}","group":"{group}"}}`,
	"topic.v1.ConsumerService/ConsumeBidi": `{"attach":{"topic":"{topic}","group":"{group}"}}`,
	"topic.v1.ConsumerService/Detach":      `{"session":"{session}"}`,
	"topic.v1.ConsumerService/Extend":      `{"session":"{session}","set":{"positions":[{"base":"0"}]}}`,
	"topic.v1.ConsumerService/Nack":        `{"session":"{session}","set":{"positions":[{"base":"0"}]}}`,
	"topic.v1.ConsumerService/Pull":        `{"topic":"{topic}","group":"{group}","session":"{session}"}`,

	"topic.v1.BackfillService/CancelBackfill": `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.BackfillService/GetBackfill":    `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.BackfillService/StartBackfill":  `{"topic":"{topic}","group":"{group}"}`,
	"topic.v1.BackfillService/WatchBackfill":  `{"topic":"{topic}","group":"{group}"}`,
}

// secOwnReasons are the reasons of procedures that reach what is the caller's own, and find it in another state: no
// backfill runs, no issuer is trusted.
var secOwnReasons = map[string]string{"CancelBackfill": "INVALID_TRANSITION", "ExchangeToken": "NO_ISSUER"}

// secNames are fields that name something, beside those that end in _id and _ids.
var secNames = []protoreflect.Name{"topic", "group", "session", "principal"}

// secOwnNames are fields that look like ids and name nothing of others: what a caller calls its own
// requests and searches, and what is looked for within what another field names. The request of a code is looked
// at apart, in codesOfOthers: attempts are counted.
var secOwnNames = []protoreflect.Name{"request_id", "client_message_id", "client_event_id", "correlation_id",
	"deduplication_id", "search_id",
	"result_id", "result_ids", "message_id"}

// secGiven are fields where others' ids are meant: whom to add, to write to, to block, or to give a role; of whom
// to show what everybody sees.
var secGiven = []string{"AddMember.userId", "CreateChat.memberIds", "SetBinding.principal", "RemoveBinding.principal",
	"CreateSubscription.group", "GetProfile.userId", "BatchGetProfiles.userId", "BlockUser.userId", "UnblockUser.userId",
	"InviteToChat.userId"}

// secSoft are fields of lists in a request that proceeds without what is not the caller's, and of requests that
// change nothing if there is nothing. It answers as of what does not exist.
var secSoft = []string{"Subscribe.chatId", "Ack.chatId", "DeclineInvitation.chatId"}

// secThings are what a procedure is tried on: of the callers, of strangers, and what is not there.
type secThings struct {
	own, theirs, none map[string]string
}

// things makes chats and, for a procedure that needs them, topics, sessions, invitations.
func (w *secWorld) things(service string, n int) secThings {
	w.Helper()
	group := func(owner, name string, members ...string) string {
		made := w.result("chat.v1.ChatService/CreateChat", owner, map[string]any{"type": 2, "name": name,
			"memberIds": members})
		id := made["overview"].(map[string]any)["chat"].(map[string]any)["chatId"].(string)
		w.result("message.v1.MessageService/SendMessage", owner, map[string]any{"chatId": id, "content": "secret"})
		return id
	}
	t := secThings{
		own:    map[string]string{"chat": group("ann", "own", "amy", "bob", "cid"), "user": "cid", "newcomer": "new"},
		theirs: map[string]string{"chat": group("yan", "theirs", "zoe"), "user": "zoe"},
		none:   map[string]string{"chat": chat.NewID("chat_"), "user": "nobody"},
	}
	w.result("chat.v1.ChatService/UpdateMemberRole", "ann", map[string]any{"chatId": t.own["chat"], "userId": "amy",
		"role": 2})
	switch {
	case strings.HasPrefix(service, "parley.topic."):
		w.topics(t, n)
	case strings.HasPrefix(service, "parley.service."):
		w.customers(t)
	case strings.HasPrefix(service, "parley.auth."), strings.HasPrefix(service, "parley.user."):
		w.people(t, n)
	}
	return t
}

// topics adds what procedures of topics are tried on.
func (w *secWorld) topics(t secThings, n int) {
	w.Helper()
	t.none["topic"], t.none["group"], t.none["session"] = "none", "none", "1-ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	for _, of := range []struct {
		things map[string]string
		owner  string
		name   string
		roles  map[string]int
	}{{t.own, "ann", "own", map[string]int{"amy": 2, "bob": 1, "cid": 1}}, {t.theirs, "yan", "theirs", nil}} {
		topic := fmt.Sprintf("%s-%d", of.name, n)
		w.result("topic.v1.TopicService/ConfigureTopic", "maker", map[string]any{"topic": topic,
			"config": map[string]any{"semantics": 2}})
		w.result("topic.v1.TopicService/SetBinding", "maker", map[string]any{"topic": topic, "principal": of.owner,
			"role": 3})
		for user, role := range of.roles {
			w.result("topic.v1.TopicService/SetBinding", "maker", map[string]any{"topic": topic, "principal": user,
				"role": role})
		}
		w.result("topic.v1.SubscriptionService/CreateSubscription", of.owner, map[string]any{"topic": topic,
			"group": of.name})
		w.result("topic.v1.TopicService/Publish", of.owner, map[string]any{"topic": topic,
			"messages": []any{map[string]any{"payload": "eA=="}}})
		pulled := w.result("topic.v1.ConsumerService/Pull", of.owner, map[string]any{"topic": topic, "group": of.name})
		of.things["topic"], of.things["group"] = topic, of.name
		of.things["session"] = pulled["session"].(string)
	}
}

// open opens a stream of a user that lives as long as the test, and returns its id.
func (w *secWorld) open(user string) string {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), http.MethodPost,
		w.url+"/parley.delivery.v1.DeliveryService/Subscribe", bytes.NewReader([]byte("\x00\x00\x00\x00\x02{}")))
	w.must(err)
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Authorization", "Bearer "+w.token(user))
	res, err := w.client.Do(req)
	w.must(err)
	w.Cleanup(func() { _ = res.Body.Close() })
	var head [5]byte
	_, err = io.ReadFull(res.Body, head[:])
	w.must(err)
	text := make([]byte, int(head[3])<<8|int(head[4]))
	_, err = io.ReadFull(res.Body, text)
	w.must(err)
	var first struct {
		Frames []struct{ Hello struct{ StreamID string } }
	}
	w.must(json.Unmarshal(text, &first))
	return first.Frames[0].Hello.StreamID
}

// secResource is a field of a request that has an id.
type secResource struct {
	field string // its name
	path  []any  // keys and indexes
	list  bool
}

// resources finds the ids of a request through its descriptor. A body that lacks one is an
// error of the table.
func (w *secWorld) resources(d protoreflect.MessageDescriptor, body map[string]any, path []any) (all []secResource) {
	w.Helper()
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		name, value := f.JSONName(), body[f.JSONName()]
		at := append(slices.Clone(path), name)
		switch {
		case secIsID(f):
			if value == nil {
				w.Errorf("the body for %s lacks %s", d.FullName(), name)
			}
			all = append(all, secResource{name, at, f.IsList()})
		case f.Message() == nil || f.IsMap():
		case value == nil && f.ContainingOneof() == nil && secHasIDs(f.Message(), 4):
			w.Errorf("the body for %s lacks %s, which has ids", d.FullName(), name)
		case value == nil:
		case f.IsList():
			for n, one := range value.([]any) {
				all = append(all, w.resources(f.Message(), one.(map[string]any), append(slices.Clone(at), n))...)
			}
		default:
			if m, ok := value.(map[string]any); ok {
				all = append(all, w.resources(f.Message(), m, at)...)
			}
		}
	}
	return all
}

func secIsID(f protoreflect.FieldDescriptor) bool {
	name := f.Name()
	if f.Kind() != protoreflect.StringKind || slices.Contains(secOwnNames, name) {
		return false
	}
	return slices.Contains(secNames, name) || strings.HasSuffix(string(name), "_id") || strings.HasSuffix(string(name),
		"_ids")
}

func secHasIDs(d protoreflect.MessageDescriptor, depth int) bool {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if secIsID(f) || depth > 0 && f.Message() != nil && !f.IsMap() && secHasIDs(f.Message(), depth-1) {
			return true
		}
	}
	return false
}

// filled is a template with things in it.
func (w *secWorld) filled(template string, things map[string]string) map[string]any {
	w.Helper()
	for name, value := range things {
		template = strings.ReplaceAll(template, "{"+name+"}", value)
	}
	var body map[string]any
	w.must(json.Unmarshal([]byte(template), &body))
	return body
}

// put puts a value into a field of a body.
func (p secResource) put(body map[string]any, value string) {
	var at any = body
	for _, step := range p.path[:len(p.path)-1] {
		switch s := step.(type) {
		case string:
			at = at.(map[string]any)[s]
		case int:
			at = at.([]any)[s]
		}
	}
	var v any = value
	if p.list {
		v = []any{value}
	}
	at.(map[string]any)[p.path[len(p.path)-1].(string)] = v
}

// kind is which thing a field names.
func (p secResource) kind() string {
	switch p.field {
	case "userId", "memberIds", "principal", "confirmUserId":
		return "user"
	}
	return strings.TrimSuffix(p.field, "Id")
}

// said is an answer without what differs by the id that was asked for.
func (a secAnswer) said(id string) string {
	body := a.body
	if strings.Contains(body, `"frames":[`) { // a stream: what it says of the id
		var kept []string
		for _, frame := range strings.Split(body, `{"chatId":`)[1:] {
			if strings.HasPrefix(frame, `"`+id) {
				kept = append(kept, strings.TrimRight(frame, ",]}\n")) // as it may be the last one
			}
		}
		body = strings.Join(kept, ";")
	}
	return fmt.Sprintln(a.status, a.reason, strings.ReplaceAll(body, id, "ID"))
}

// Every procedure of every service, every field with an id, by four roles: another's id is answered as one that
// does not exist, and nothing is written (S-17). With the callers' own ids the same requests succeed.
func TestSec_S_17_ForeignIDs(t *testing.T) {
	racetest.SkipSerial(t)
	t.Parallel()
	w := newSecWorld(t)
	roles := []string{"ann", "amy", "bob", "dan"} // owner, administrator, member, nobody
	streams := map[string]string{}
	for _, user := range append(roles, "yan") {
		streams[user] = w.open(user)
	}
	cells := 0
	methods := w.methods()
	for n, m := range methods {
		template, ok := secBodies[strings.TrimPrefix(m.procedure, "/parley.")]
		if !ok {
			t.Errorf("%s: no request is known that succeeds", m.procedure)
			continue
		}
		user, template := secCaller(template)
		things := w.things(string(m.Parent().FullName()), n)
		if user == "gone" {
			user = things.own["gone"]
		}
		things.theirs["stream"], things.none["stream"] = streams["yan"], streams["yan"][:len(streams["yan"])-4]+"0000"
		by := roles
		if user == "shop" {
			by = []string{"shop", "ann"}
		}
		for _, role := range by {
			things.own["stream"] = streams[role]
			for _, resource := range w.resources(m.Input(), w.filled(template, things.own), nil) {
				w.foreign(m, role, template, resource, things)
				cells++
			}
		}
		things.own["stream"] = streams[user]
		if a := w.call(m, user, w.filled(template, things.own)); a.reason != secOwnReasons[string(m.Name())] {
			t.Errorf("%s with the own ids: %d %s %s", m.procedure, a.status, a.reason, a.body)
		}
	}
	w.codesOfOthers()
	// Each of people's 25 procedures had an invitation that others accepted and declined, of which the last ten of
	// one inviter stay; one made another.
	list := w.result("user.v1.UserService/ListInvitations", "new", struct{}{})["invitations"].([]any)
	if len(list) != 10+1 {
		t.Errorf("%d invitations are there after others accepted and declined them", len(list))
	}
	if len(methods) < 82 || cells < 350 {
		t.Errorf("%d procedures, %d cells", len(methods), cells)
	}
	t.Logf("%d procedures, %d cells", len(methods), cells)
}

// foreign tries one field.
func (w *secWorld) foreign(m secMethod, role, template string, resource secResource, things secThings) {
	w.Helper()
	field := string(m.Name()) + "." + resource.field
	what := fmt.Sprintf("%s by %s", field, role)
	kind := resource.kind()
	theirs, none := things.theirs[kind], things.none[kind]
	if theirs == "" || none == "" {
		w.Errorf("%s: nothing is known of the id", what)
		return
	}
	ask := func(id string) (a secAnswer) {
		body := w.filled(template, things.own)
		resource.put(body, id)
		return w.call(m, role, body)
	}
	if slices.Contains(secGiven, field) {
		return
	}
	var got secAnswer
	keys := slices.DeleteFunc(w.writes.during(func() { got = ask(theirs) }), func(key string) bool {
		switch {
		case strings.HasPrefix(key, "audit/"): // which records what is refused
			return true
		case field == "DeclineInvitation.chatId": // deletes a row of the own, if there is one
			return strings.HasPrefix(key, "people/"+role+"/")
		case field == "Ack.streamId": // reads its marks of the own chat all the same
			return strings.HasSuffix(key, role+"/"+things.own["chat"])
		}
		return false
	})
	if len(keys) > 0 {
		w.Errorf("%s: %v are written", what, keys)
	}
	if missing := ask(none); got.said(theirs) != missing.said(none) {
		w.Errorf("%s: of another %s, of none %s", what, got.said(theirs), missing.said(none))
	}
	if got.status == http.StatusOK && got.reason == "" && !slices.Contains(secSoft, field) {
		w.Errorf("%s: is let through: %s", what, got.body)
	}
}
