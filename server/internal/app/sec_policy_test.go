package app

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/internal/racetest"
)

// secPolicy is who may call what: the committed list of all procedures, each with its callers and
// whether it changes anything. Callers are users, service accounts, anybody who has no token yet, operators at
// their own address by the least role, and processes of the installation.
func secPolicy(t *testing.T) map[string][2]string {
	t.Helper()
	b, err := os.ReadFile("testdata/procedures.txt")
	if err != nil {
		t.Fatal(err)
	}
	list := map[string][2]string{}
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) != 3 || list[words[2]][0] != "" {
			t.Fatalf("a line of the list is %q", line)
		}
		list[words[2]] = [2]string{words[0], words[1]}
	}
	return list
}

// secProcedures are those of all contracts.
func secProcedures() map[string]protoreflect.MethodDescriptor {
	all := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				if strings.HasPrefix(string(s.FullName()), "parley.") {
					m := s.Methods().Get(j)
					all["/"+string(s.FullName())+"/"+string(m.Name())] = m
				}
			}
		}
		return true
	})
	return all
}

func secReads(m protoreflect.MethodDescriptor) bool {
	options, _ := m.Options().(*descriptorpb.MethodOptions)
	return options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// Every procedure stands in the committed list, with who calls it and whether it changes anything; what users
// reach is what the list gives them. Contracts have a version (S-47).
func TestSec_S_47_Inventory(t *testing.T) {
	t.Parallel()
	w := newSecWorld(t)
	policy, all := secPolicy(t), secProcedures()
	for procedure, m := range all {
		kind := "changes"
		if secReads(m) {
			kind = "reads"
		}
		if have := policy[procedure]; have[1] != kind {
			t.Errorf("the list says %q of %s, which %s: add it with who may call it", have, procedure, kind)
		}
		if !regexp.MustCompile(`^/parley\.[a-z]+\.v\d+\.`).MatchString(procedure) {
			t.Errorf("%s has no version", procedure)
		}
	}
	served := map[string]bool{}
	for _, m := range w.methods() {
		served[m.procedure] = true
	}
	for procedure, by := range policy {
		if all[procedure] == nil {
			t.Errorf("%s stands in the list and in no contract", procedure)
		}
		public := slices.Contains([]string{"users", "services", "anybody"}, by[0])
		if !public && !slices.Contains(secRoles, by[0]) && by[0] != "processes" {
			t.Errorf("%s is for %q", procedure, by[0])
		}
		if served[procedure] != public {
			t.Errorf("%s is for %s; served to the public: %v", procedure, by[0], served[procedure])
		}
	}
}

// status is the answer's to a request without a body to speak of.
func (w *secWorld) status(base, procedure, token string) int {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), http.MethodPost, base+procedure, strings.NewReader("{}"))
	w.must(err)
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	w.must(err)
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20))
	return res.StatusCode
}

// operators runs the listener of operators, and returns where it is.
func (w *secWorld) operators() string {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	for _, s := range w.p.services {
		if s.Name != "ops" {
			continue
		}
		up, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- s.Run(ctx, func() { close(up) }) }()
		w.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				w.Error(err)
			}
		})
		<-up
		i := slices.Index(w.p.addresses, any("ops"))
		return "http://" + w.p.addresses[i+1].(string)
	}
	cancel()
	w.Fatal("no operators are served")
	return ""
}

// secRoles are the roles of operators, the least first.
var secRoles = []string{"viewers", "moderators", "admins"}

// secUsersWrite are the methods that the scope users.write opens.
var secUsersWrite = []string{"CreateUser", "GetProfile", "BatchGetProfiles", "UpdateProfile", "SetHandle"}

// secStatus is how somebody is answered at a procedure for some callers before anything else; 0: let in.
func secStatus(procedure, by, who string) int {
	role := slices.Index(secRoles, who)
	switch {
	case by == "anybody":
		return 0 // a token that comes along means nothing
	case slices.Contains(secRoles, by) && role >= 0:
		if role < slices.Index(secRoles, by) {
			return http.StatusForbidden
		}
		return 0
	case slices.Contains(secRoles, by), role >= 0, who != "users" && who != "services":
		return http.StatusUnauthorized
	case who == by && who == "users":
		return 0
	case who == "services" && slices.Contains(secUsersWrite, path.Base(procedure)):
		return 0 // which is all that the account's scope allows
	}
	return http.StatusForbidden
}

// Every procedure at every address refuses a caller that it is not for, before it does anything else: one without a
// token, with a broken one, with a token of another kind, a service account without the scope, an operator with a
// lesser role. Nothing is written (S-15).
func TestSec_S_15_EveryProcedureHasItsCallers(t *testing.T) {
	racetest.SkipSerial(t)
	t.Parallel()
	w := newSecWorld(t)
	user, operators := w.token("ann"), w.operators()
	addresses := map[string]string{"users": w.url, "services": w.url, "anybody": w.url, "viewers": operators,
		"moderators": operators, "admins": operators}
	tokens := map[string]string{"nobody": "", "nonsense": "x", "another's signature": user + "x", "users": user,
		"services": w.token("idle")}
	for who, role := range map[string]auth.Role{"viewers": auth.Viewer, "moderators": auth.Moderator,
		"admins": auth.Admin} {
		token, err := w.p.key.IssueRole("ada", role, time.Now(), time.Hour)
		w.must(err)
		tokens[who] = token
	}
	tried, passed := 0, 0
	for procedure, by := range secPolicy(t) {
		base, known := addresses[by[0]]
		if !known { // for processes: tried at the addresses of all others
			for _, who := range []string{"users", "admins"} {
				if got := w.status(addresses[who], procedure, tokens[who]); got != http.StatusNotFound {
					t.Errorf("%s at the address of %s: %d", procedure, who, got)
				}
			}
			continue
		}
		keys := slices.DeleteFunc(w.writes.during(func() {
			for who, token := range tokens {
				want := secStatus(procedure, by[0], who)
				if want == 0 {
					continue
				}
				if got := w.status(base, procedure, token); got != want {
					t.Errorf("%s, which is for %s, with the token of %s: %d, not %d", procedure, by[0], who, got, want)
				}
				tried++
			}
		}), func(key string) bool { return strings.HasPrefix(key, "audit/") }) // which records refused roles
		if len(keys) > 0 {
			t.Errorf("%s: %v are written", procedure, keys)
		}
		for who, token := range tokens {
			if base == w.url && by[0] != "anybody" || secStatus(procedure, by[0], who) != 0 {
				continue // what users may is tried where requests are that succeed
			}
			got := w.status(base, procedure, token)
			if got == http.StatusUnauthorized || got == http.StatusForbidden ||
				by[0] == "anybody" && got != http.StatusBadRequest {
				t.Errorf("%s, which is for %s, with the token of %s: %d", procedure, by[0], who, got)
			}
			passed++
		}
	}
	if tried < 6*88 || passed < 80 {
		t.Errorf("%d requests are refused, %d are not", tried, passed)
	}
}

// What changes something cannot be had by GET, which a page of another site can make a browser send; a
// form of another site is no request (S-34).
func TestSec_S_34_MutationsRefuseGet(t *testing.T) {
	racetest.SkipSerial(t)
	t.Parallel()
	w := newSecWorld(t)
	mutations := 0
	for _, m := range w.methods() {
		address := w.url + m.procedure + "?connect=v1&encoding=json&message=" + url.QueryEscape("{}")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
		w.must(err)
		req.Header.Set("Authorization", "Bearer "+w.token(m.caller()))
		res, err := http.DefaultTransport.RoundTrip(req)
		w.must(err)
		_ = res.Body.Close()
		refused := res.StatusCode == http.StatusMethodNotAllowed || res.StatusCode == http.StatusHTTPVersionNotSupported
		if reads := secReads(m.MethodDescriptor) && !m.IsStreamingServer(); reads == refused {
			t.Errorf("GET %s: %s", m.procedure, res.Status)
		} else if !reads {
			mutations++
		}
		for _, kind := range []string{"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"} {
			keys := w.writes.during(func() {
				if a := w.send(m.procedure, kind, []byte("{}"),
					"Bearer "+w.token(m.caller())); a.status != http.StatusUnsupportedMediaType {
					t.Errorf("%s as %s: %d", m.procedure, kind, a.status)
				}
			})
			if len(keys) > 0 {
				t.Errorf("%s as %s: %v are written", m.procedure, kind, keys)
			}
		}
	}
	if mutations < 20 {
		t.Errorf("%d mutations", mutations)
	}
}

// Every procedure with a text in its request refuses one of 100,000 characters, wherever in the request it
// stands, and writes nothing: what the contracts bound is checked for each of them. Requests of those who need no
// token are cut off before, at 4 KiB and 16 KiB; within that they are checked as well (S-20).
func TestSec_S_20_EveryProcedureIsChecked(t *testing.T) {
	t.Parallel()
	w := newSecWorld(t)
	checked, policy := 0, secPolicy(t)
	refused := func(m secMethod, f protoreflect.FieldDescriptor, size, status int, reason string) {
		t.Helper()
		var v any = strings.Repeat("x", size)
		if f.IsList() {
			v = []any{v}
		}
		var a secAnswer
		keys := w.writes.during(func() { a = w.call(m, m.caller(), map[string]any{f.JSONName(): v}) })
		if a.reason != reason || a.status != status || len(keys) > 0 {
			t.Errorf("%s %s of %d: %d %s, written %v", m.procedure, f.Name(), size, a.status, a.reason, keys)
		}
		checked++
	}
	for _, m := range w.methods() {
		fields := m.Input().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			switch {
			case f.Kind() != protoreflect.StringKind || f.IsMap():
			case policy[m.procedure][0] == "anybody":
				within := 4<<10 - 100
				if m.Name() == "ExchangeToken" {
					within = 16<<10 - 100
				}
				refused(m, f, within, http.StatusBadRequest, "INVALID_ARGUMENT")
				refused(m, f, 100_000, http.StatusTooManyRequests, "REQUEST_TOO_LARGE") // as Connect says it
			case m.IsStreamingServer() || m.IsStreamingClient():
				refused(m, f, 100_000, http.StatusOK, "INVALID_ARGUMENT")
			default:
				refused(m, f, 100_000, http.StatusBadRequest, "INVALID_ARGUMENT")
			}
		}
	}
	for path, field := range map[string]string{"request-code": "identifier", "verify-code": "code",
		"exchange-token": "token", "refresh": "refreshToken"} {
		a := w.send("/api/v1/auth/"+path, "application/json",
			[]byte(`{"`+field+`":"`+strings.Repeat("x", 100_000)+`"}`), "")
		if a.status != http.StatusRequestEntityTooLarge || !strings.Contains(a.body, "REQUEST_TOO_LARGE") {
			t.Errorf("%s as REST: %d %s", path, a.status, a.body)
		}
	}
	if checked < 85 {
		t.Errorf("%d fields", checked)
	}
}

// secNobody are procedures that answer with nothing about users who do not exist.
var secNobody = map[string]string{"BatchGetProfiles": `{"profiles":[]}`, "UnblockUser": "{}"}

// Ids with what separates keys, lines and commands are refused wherever an id stands, nothing is written, and no
// line of the log is forged (S-24).
func TestSec_S_24_IDsAreNoCode(t *testing.T) {
	racetest.SkipSerial(t)
	t.Parallel()
	w := newSecWorld(t)
	evil := []string{"a#b", "a\r\nlevel=ERROR msg=forged", "a\x00b", "../../x", "a b", "{chat}", "*", "' OR 1=1 --",
		"${x}", "a\u202eb"}
	tried := 0
	for n, m := range w.methods() {
		_, template := secCaller(secBodies[strings.TrimPrefix(m.procedure, "/parley.")])
		things := map[string]string{"chat": "chat_01ARZ3NDEKTSV4RRFFQ69G5FAV", "topic": "t", "group": "g"}
		for _, position := range w.resources(m.Input(), w.filled(template, things), nil) {
			for _, id := range evil {
				body := w.filled(template, things)
				position.put(body, id)
				var a secAnswer
				keys := w.writes.during(func() { a = w.call(m, m.caller(), body) })
				served := a.status == http.StatusOK && a.reason == ""
				if auth.CheckUserID(id) == nil && strings.Join(strings.Fields(a.body), "") == secNobody[string(m.Name())] {
					served = false // the name of nobody, to the letter
				}
				if served || len(keys) > 0 {
					t.Errorf("%d %s with %s %q: %d %q, written %v", n, m.procedure, position.field, id, a.status, a.body, keys)
				}
				tried++
			}
		}
	}
	for line := range strings.Lines(w.log.String()) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("a line of the log is %q", line)
		}
	}
	if tried < 600 {
		t.Errorf("%d requests", tried)
	}
}

// What belongs to the server cannot be set by who asks, and answers to users have no addresses of people (S-18).
func TestSec_S_18_ServersFields(t *testing.T) {
	t.Parallel()
	w := newSecWorld(t)
	owned := map[string]any{"senderId": "bob", "sender_id": "bob", "createdBy": "bob", "ownerId": "bob", "sequence": "99",
		"version": "99", "createdAt": "2001-01-01T00:00:00Z", "messageId": "msg_x", "userId": "bob", "status": 1,
		"memberCount": 50}
	with := func(body map[string]any) map[string]any {
		for k, v := range owned {
			if body[k] == nil {
				body[k] = v
			}
		}
		return body
	}
	made := w.result("chat.v1.ChatService/CreateChat", "ann", with(map[string]any{"type": 2, "name": "n",
		"memberIds": []string{"bob"}}))
	text, err := json.Marshal(made)
	w.must(err)
	chat := made["overview"].(map[string]any)["chat"].(map[string]any)
	if chat["createdBy"] != "ann" || strings.Contains(string(text), "2001-") || chat["memberCount"] == float64(50) {
		t.Errorf("made: %s", text)
	}
	sent := w.result("message.v1.MessageService/SendMessage", "ann", with(map[string]any{"chatId": chat["chatId"],
		"content": "x"}))
	list := w.result("message.v1.MessageService/ListMessages", "bob", map[string]any{"chatId": chat["chatId"]})
	message := list["messages"].([]any)[0].(map[string]any)
	if message["senderId"] != "ann" || message["sequence"] != "1" || sent["messageId"] == "msg_x" ||
		strings.HasPrefix(message["createdAt"].(string), "2001") {
		t.Errorf("sent: %v, %v", sent, message)
	}
	a := w.call(secMethod{procedure: "/parley.chat.v1.ChatService/AddMember",
		MethodDescriptor: secProcedures()["/parley.chat.v1.ChatService/AddMember"]},
		"bob", map[string]any{"chatId": chat["chatId"], "userId": "bob", "role": 1})
	if a.status == http.StatusOK {
		t.Error("a member makes himself the owner")
	}
	private := regexp.MustCompile(`(?i)(phone|e_?mail|identifier|password|secret|pepper|hash)`)
	own := map[protoreflect.FullName]bool{
		"parley.user.v1.ExportDataResponse.identifier": true, // the caller's, who asks for all that is stored
		// What the server has just made for the caller, who gets it no other time.
		"parley.topic.v1.CreateSubscriptionResponse.push_secret": true,
		"parley.topic.v1.UpdateSubscriptionResponse.push_secret": true,
	}
	for _, m := range w.methods() {
		seen := map[protoreflect.FullName]bool{}
		var walk func(d protoreflect.MessageDescriptor)
		walk = func(d protoreflect.MessageDescriptor) {
			if seen[d.FullName()] {
				return
			}
			seen[d.FullName()] = true
			for i := range d.Fields().Len() {
				f := d.Fields().Get(i)
				if f.Kind() == protoreflect.StringKind && !own[f.FullName()] && private.MatchString(string(f.Name())) {
					t.Errorf("%s answers with %s", m.procedure, f.FullName())
				}
				if f.Message() != nil {
					walk(f.Message())
				}
			}
		}
		walk(m.Output())
	}
}

// A request that is known to be too large is not read, and an unknown type of content is no request (S-35).
func TestSec_S_35_UnknownContent(t *testing.T) {
	racetest.SkipSerial(t)
	t.Parallel()
	w := newSecWorld(t)
	for _, m := range w.methods() {
		for _, kind := range []string{"", "application/xml", "application/yaml", "application/jsonp", "image/png", "*/*"} {
			if a := w.send(m.procedure, kind, []byte("{}"),
				"Bearer "+w.token(m.caller())); a.status != http.StatusUnsupportedMediaType {
				t.Errorf("%s as %q: %d", m.procedure, kind, a.status)
			}
		}
		b, err := proto.Marshal(&descriptorpb.FieldDescriptorProto{})
		w.must(err)
		want := http.StatusNotFound
		if m.caller() == "shop" {
			want = http.StatusForbidden // no scope has it
		}
		if a := w.send(m.procedure+"X", "application/proto", b, "Bearer "+w.token(m.caller())); a.status != want {
			t.Errorf("%sX: %d", m.procedure, a.status)
		}
	}
}
