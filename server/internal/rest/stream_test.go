package rest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"google.golang.org/protobuf/encoding/protojson"
)

// feed is an open stream of events.
type feed struct {
	testing.TB
	header http.Header
	lines  *bufio.Scanner
	close  func()
}

// event is one of them; id and retry are empty where it has none.
type event struct{ kind, id, retry, data string }

// listen opens a stream over a real connection.
func (w *fixture) listen(user, query string, headers ...string) *feed {
	w.Helper()
	web := httptest.NewServer(w.handler)
	w.Cleanup(web.Close)
	ctx, cancel := context.WithTimeout(w.Context(), 20*time.Second)
	w.Cleanup(cancel) // before the server closes, which waits for its streams
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, web.URL+"/api/v1/stream"+query, http.NoBody)
	w.must(err)
	if user != "" {
		req.Header.Set("Authorization", "Bearer "+user)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	w.must(err)
	w.Cleanup(func() { res.Body.Close() })
	testkit.Equal(w, "status", res.StatusCode, 200)
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	return &feed{w.TB, res.Header, lines, cancel}
}

func (f *feed) next() event {
	f.Helper()
	var e event
	for f.lines.Scan() {
		name, value, _ := strings.Cut(f.lines.Text(), ": ")
		switch name {
		case "":
			return e
		case "event":
			e.kind = value
		case "id":
			e.id = value
		case "retry":
			e.retry = value
		case "data":
			e.data = value
		default:
			f.Fatalf("line %q", f.lines.Text())
		}
	}
	f.Fatalf("the stream ended: %v", f.lines.Err())
	return e
}

func (f *feed) frame() (*deliveryv1.Frame, event) {
	f.Helper()
	e := f.next()
	m := &deliveryv1.Frame{}
	if err := protojson.Unmarshal([]byte(e.data), m); err != nil || e.kind != "" {
		f.Fatalf("%+v: %v", e, err)
	}
	return m, e
}

// toHeartbeat reads what a stream sends until it has sent what was missed, and
// returns contents of messages, and versions of heads, in order.
func (f *feed) toHeartbeat() (got []string, id string) {
	f.Helper()
	for {
		m, e := f.frame()
		if e.id != "" {
			id = e.id
		}
		switch {
		case m.GetMessage() != nil:
			got = append(got, m.GetMessage().GetContent())
		case m.GetHead() != nil:
			got = append(got, fmt.Sprint("head ", m.GetHead().GetVersion()))
		case m.GetHeartbeat() != nil:
			return got, id
		}
	}
}

// A stream begins with the heads of all chats, continues with what is sent, and is
// resumed after any of its events, from the header or the address.
func TestEvents(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	say := func(text string) { w.do("ann", "POST", path+"/messages", `{"content":"`+text+`"}`).want(201, "") }
	f := w.listen("bob", "")
	testkit.Equal(t, "type", f.header.Get("Content-Type"), "text/event-stream")
	testkit.Equal(t, "buffering", f.header.Get("X-Accel-Buffering"), "no")
	testkit.Equal(t, "caching", f.header.Get("Cache-Control"), "no-cache")
	for name := range f.header {
		if strings.HasPrefix(name, "Connect-") || name == "Accept-Encoding" {
			t.Errorf("header %s", name)
		}
	}
	m, e := f.frame()
	if m.GetHello().GetStreamId() == "" || e.retry != "1000" || e.id == "" {
		t.Fatalf("first: %+v", e)
	}
	if !strings.Contains(e.data, `"version":"0"`) {
		t.Errorf("zeros are missing: %s", e.data)
	}
	got, _ := f.toHeartbeat()
	testkit.Equal(t, "at the start", fmt.Sprint(got), "[head 2]")
	var ids []string
	for i := range 5 {
		say(fmt.Sprint(i))
		m, e := f.frame()
		testkit.Equal(t, "live", m.GetMessage().GetContent(), fmt.Sprint(i))
		ids = append(ids, e.id)
	}
	f.close()
	for i, id := range ids {
		for name, again := range map[string]*feed{
			"header":  w.listen("bob", "", "Last-Event-ID", id),
			"address": w.listen("bob", "?lastEventId="+id),
			// a browser keeps the address when it resumes
			"both": w.listen("bob", "?lastEventId=nonsense", "Last-Event-ID", id),
		} {
			got, _ := again.toHeartbeat()
			want := []string{"0", "1", "2", "3", "4"}[i+1:]
			testkit.Equal(t, name, fmt.Sprint(got), fmt.Sprint(want))
			again.close()
		}
	}
	token := w.do("bob", "GET", "/api/v1/sync", "").want(200, "").at("token").(string)
	other := w.group("bob")
	behind := w.listen("bob", "", "Last-Event-ID", token)
	got, _ = behind.toHeartbeat() // times within the overlap: both
	testkit.Equal(t, "from a token of Sync", fmt.Sprint(len(got)), "2")
	resumed := w.listen("bob", "", "Last-Event-ID", ids[4])
	got, id := resumed.toHeartbeat()
	testkit.Equal(t, "a chat that the id does not know", fmt.Sprint(got), "[head 2]")
	w.do("ann", "POST", other+"/messages", `{"content":"there"}`).want(201, "")
	resumed.close()
	got, _ = w.listen("bob", "", "Last-Event-ID", id).toHeartbeat()
	testkit.Equal(t, "it is known from its head on", fmt.Sprint(got), "[there]")
}

// A stream that is asked for what was missed only ends behind it, without a word: a browser comes again with the
// last id, and gets what was sent meanwhile.
func TestCatchUpOnly(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	id := ""
	for round, want := range []string{"[head 2]", "[one]", "[two]", "[]"} {
		f := w.listen("bob", "?catchUpOnly=true", "Last-Event-ID", id)
		got, last := f.toHeartbeat()
		testkit.Equal(t, fmt.Sprint("round ", round), fmt.Sprint(got), want)
		if f.lines.Scan() {
			t.Errorf("behind the heartbeat: %q", f.lines.Text())
		}
		testkit.Must(t, f.lines.Err())
		id = last
		if round < 2 {
			w.do("ann", "POST", path+"/messages", `{"content":"`+[]string{"one", "two"}[round]+`"}`).want(201, "")
		}
	}
	w.do("bob", "GET", "/api/v1/stream?catchUpOnly=perhaps", "").want(400, "INVALID_ARGUMENT")
	w.do("bob", "GET", "/api/v1/stream?catchUpOnly=true&catchUpOnly=true", "").want(400, "INVALID_ARGUMENT")
	w.listen("bob", "?catchUpOnly=false").toHeartbeat()
}

// A browser's EventSource opens a stream with a ticket, once.
func TestStreamWithATicket(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	ticket := func() string {
		return w.do("bob", "POST", "/api/v1/auth/stream-tickets", "").want(200, "").at("ticket").(string)
	}
	one := ticket()
	f := w.listen("", "?ticket="+one)
	f.toHeartbeat()
	w.do("ann", "POST", path+"/messages", `{"content":"x"}`).want(201, "")
	if m, _ := f.frame(); m.GetMessage().GetContent() != "x" {
		t.Errorf("live: %v", m)
	}
	w.do("", "GET", "/api/v1/stream?ticket="+one, "").want(401, "UNAUTHENTICATED")
	w.do("", "GET", "/api/v1/stream?ticket=", "").want(401, "UNAUTHENTICATED")
	w.do("", "GET", "/api/v1/stream?ticket=bob", "").want(401, "UNAUTHENTICATED")
	w.do("", "GET", "/api/v1/chats?ticket="+ticket(), "").want(401, "UNAUTHENTICATED")
	two := ticket()
	w.do("bob", "GET", "/api/v1/stream?ticket="+two, "").want(400, "INVALID_ARGUMENT")
	w.do("", "GET", "/api/v1/stream?ticket="+two+"&ticket="+two, "").want(400, "INVALID_ARGUMENT")
	w.do("", "GET", "/api/v1/stream?catchUpOnly=perhaps&ticket="+two, "").want(400, "INVALID_ARGUMENT")
	w.store.fail(store.ErrUnavailable, nil)
	w.do("", "GET", "/api/v1/stream?ticket="+two, "").want(503, "UNAVAILABLE")
	w.listen("", "?ticket="+two).toHeartbeat()
}

// Who wants to acknowledge counts the frames; heartbeats count, the end does not.
func TestAckOfEvents(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	f := w.listen("bob", "")
	m, _ := f.frame()
	stream := m.GetHello().GetStreamId()
	f.frame() // head
	f.frame() // heartbeat
	w.do("ann", "POST", path+"/messages", `{"content":"x"}`).want(201, "")
	f.frame()
	const service = "/parley.delivery.v1.DeliveryService/"
	ack := func(position int) int {
		r := httptest.NewRequest("POST", service+"Ack",
			strings.NewReader(fmt.Sprintf(`{"streamId":%q,"position":%d}`, stream, position)))
		r.Header.Set("Authorization", "Bearer bob")
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		w.gate(w.api.Handlers()[service]).ServeHTTP(rec, r)
		return rec.Code
	}
	testkit.Equal(t, "the fourth", ack(4), 200)
	testkit.Equal(t, "a fifth", ack(5), 400)
}

// A user who was removed is not notified again.
func TestEventsOfALeaver(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	f := w.listen("bob", "")
	_, _ = f.toHeartbeat()
	w.do("ann", "DELETE", path+"/members/bob", "").want(204, "")
	m, e := f.frame()
	testkit.Equal(t, "removed", m.GetMembershipChange().GetUserId(), "bob")
	f.close()
	f = w.listen("bob", "", "Last-Event-ID", e.id)
	for m, _ := f.frame(); m.GetHeartbeat() == nil; m, _ = f.frame() {
		if m.GetMessage() != nil || m.GetHead() != nil {
			t.Errorf("shown: %v", m)
		}
	}
}

// The stream says why it ends, and when to come again.
func TestEndOfEvents(t *testing.T) {
	w := newFixture(t)
	w.group("bob")
	first := w.listen("bob", "")
	_, _ = first.toHeartbeat()
	var others []*feed
	for range 10 {
		others = append(others, w.listen("bob", ""))
		_, _ = others[len(others)-1].toHeartbeat()
	}
	m, e := first.frame()
	testkit.Equal(t, "code", m.GetEnd().GetCode(), deliveryv1.EndCode_END_CODE_REPLACED)
	testkit.Equal(t, "a browser waits", e.retry, "2073600000")
	last := first.next()
	testkit.Equal(t, "event", last.kind, "end")
	var s struct {
		Code    int
		Message string
		Details []struct{ Reason string }
	}
	w.must(json.Unmarshal([]byte(last.data), &s))
	testkit.Equal(t, "status", fmt.Sprintf("%d %s %t", s.Code, s.Details[0].Reason, s.Message != ""), "8 REPLACED true")
	if first.lines.Scan() {
		t.Errorf("after the end: %q", first.lines.Text())
	}
	// A server that goes down says when; browsers keep to it by themselves.
	w.hub.Drain(10 * time.Second)
	seen := map[string]bool{}
	for _, f := range others {
		m, e := f.frame()
		testkit.Equal(t, "retry", e.retry, fmt.Sprint(1000+m.GetEnd().GetReconnectAfter().AsDuration().Milliseconds()))
		testkit.Equal(t, "last", f.next().kind, "end")
		seen[e.retry] = true
	}
	if len(seen) != 10 || !seen["1000"] || !seen["10000"] {
		t.Errorf("%v", seen)
	}
}

// What is refused is refused as everywhere.
func TestRefusedEvents(t *testing.T) {
	w := newFixture(t)
	f := w.listen("ann", "")
	_, id := f.toHeartbeat()
	f.close()
	const path = "/api/v1/stream"
	for _, tt := range []struct {
		name, method, target string
		headers              []string
		status               int
		reason               string
	}{
		{"no token", "GET", path, []string{"Authorization", ""}, 401, "UNAUTHENTICATED"},
		{"a token in the address", "GET", path + "?access_token=ann&token=ann", []string{"Authorization", ""}, 401,
			"UNAUTHENTICATED"},
		{"HEAD", "HEAD", path, nil, 405, ""},
		{"POST", "POST", path, nil, 405, "METHOD_NOT_ALLOWED"},
		{"another user's id", "GET", path, []string{"Authorization", "Bearer bob", "Last-Event-ID", id}, 400,
			"INVALID_TOKEN"},
		{"no id of ours", "GET", path, []string{"Last-Event-ID", "7"}, 400, "INVALID_TOKEN"},
		{"a broken id", "GET", path, []string{"Last-Event-ID", ".%"}, 400, "INVALID_ARGUMENT"},
		{"a cut id", "GET", path, []string{"Last-Event-ID", id[:len(id)-3]}, 400, "INVALID_ARGUMENT"},
		{"a longer id", "GET", path, []string{"Last-Event-ID", id + "AAAA"}, 400, "INVALID_ARGUMENT"},
		{"a query that is none", "GET", path + "?lastEventId=%zz", nil, 400, "INVALID_ARGUMENT"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &fixture{TB: t, handler: w.handler}
			a := w.do("ann", tt.method, tt.target, "", tt.headers...)
			testkit.Equal(t, "status", a.status, tt.status)
			if tt.method != "HEAD" {
				a.want(tt.status, tt.reason)
			}
			testkit.Equal(t, "type", a.header.Get("Content-Type"), "application/json")
			testkit.Equal(t, "of the RPC", a.header.Get("Connect-Accept-Encoding"), "")
		})
	}
	w.hub.Drain(0)
	a := w.do("ann", "GET", path, "").want(503, "DRAINING")
	testkit.Equal(t, "retry", a.header.Get("Retry-After"), "1")
}
