package app

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store"
)

// secFree are texts of requests that say what people wrote or searched, or how they call something, at
// places of requests that succeed otherwise.
var secFree = map[string]string{
	"chat.v1.ChatService/CreateChat":                  `{"type":2,"name":"%","memberIds":["cid"],"requestId":"%"}`,
	"chat.v1.ChatService/UpdateChat":                  `{"chatId":"{chat}","name":"%","requestId":"%"}`,
	"chat.v1.ChatService/MuteChat":                    `{"chatId":"{chat}","requestId":"%"}`,
	"message.v1.MessageService/SendMessage":           `{"chatId":"{chat}","content":"%"}`,
	"message.v1.MessageService/MarkRead":              `{"chatId":"{chat}","sequence":"1","requestId":"%"}`,
	"analytics.v1.AnalyticsService/RecordBatch":       secSearches,
	"auth.v1.AuthService/RequestCode":                 `{"identifier":"%@example.com"}`,
	"auth.v1.AuthService/VerifyCode":                  secSignIn,
	"user.v1.UserService/SetHandle":                   `{"handle":"%"}`,
	"user.v1.UserService/UpdateProfile":               `{"displayName":"%","avatar":"%","about":"%"}`,
	"topic.v1.TopicService/Publish":                   `{"topic":"{topic}","messages":[{"key":"%","type":"%","correlationId":"%","deduplicationId":"%","headers":{"h":"%"},"payload":"%64"}]}`,
	"topic.v1.SubscriptionService/CreateSubscription": `{"topic":"{topic}","group":"own","config":{"filter":{"clauses":[{"header":"%","operator":1,"values":["%","%"]}]}}}`,
	"topic.v1.SubscriptionService/UpdateSubscription": `{"topic":"{topic}","group":"own","config":{"filter":{"clauses":[{"header":"%","operator":1,"values":["%","%"]}]}}}`,
	"topic.v1.SubscriptionService/UnparkKeys":         `{"topic":"{topic}","group":"own","keys":["%","%"]}`,
	"topic.v1.ConsumerService/Nack":                   `{"session":"{session}","set":{"positions":[{"base":"0"}],"reason":"%"}}`,
	"topic.v1.ConsumerService/Pull":                   `{"topic":"{topic}","group":"own","member":"%"}`,
}

const secSignIn = `{"identifier":"{proof}","requestId":"{request}","code":"{code}",
	"device":"%"}`

const secSearches = `{"events":[{"searchImpression":{"searchId":"%","query":"%","resultIds":["%","%"]}},
	{"searchResultSummary":{"searchId":"%","query":"%","filters":["%","%"]}},
	{"searchClick":{"searchId":"%","resultId":"%"}},
	{"searchDwell":{"searchId":"%","resultId":"%"}},{"acImpression":{"searchId":"%","prefix":"%","suggestions":["%"]}},
	{"acSelect":{"searchId":"%","prefix":"%","suggestion":"%"}}]}`

// canaries makes texts that come nowhere else.
type canaries struct{ n int }

func (c *canaries) next() string {
	c.n++
	return fmt.Sprintf("canary%05d", c.n)
}

// fill puts a canary into every text and all bytes of a message, down to a depth.
func (c *canaries) fill(d protoreflect.MessageDescriptor, depth int) map[string]any {
	body, chosen := map[string]any{}, map[protoreflect.FullName]bool{}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if of := f.ContainingOneof(); of != nil && !of.IsSynthetic() {
			if chosen[of.FullName()] {
				continue
			}
			chosen[of.FullName()] = true
		}
		var v any
		switch {
		case f.IsMap():
			v = map[string]any{c.next(): c.next()}
			if f.MapValue().Kind() != protoreflect.StringKind {
				continue
			}
		case f.Kind() == protoreflect.StringKind:
			v = c.next()
		case f.Kind() == protoreflect.BytesKind:
			v = base64.StdEncoding.EncodeToString([]byte(c.next()))
		case f.Message() != nil && depth > 0 && strings.HasPrefix(string(f.Message().FullName()), "parley."):
			v = c.fill(f.Message(), depth-1)
		default:
			continue
		}
		if f.IsList() {
			v = []any{v}
		}
		body[f.JSONName()] = v
	}
	return body
}

// Nothing that people write, search, or call something by stands in logs, at any level, in metrics, or, but for
// settings, in the audit, whether the request was served or refused; nor do tokens, keys and addresses of people
// (S-38), but for the line that brings developers their codes. There are no traces. Dead letters have the record as
// it was, and their reasons and headers say nothing of it: package consume.
func TestSec_S_38_CanariesOfEveryField(t *testing.T) {
	racetest.SkipSerial(t)
	t.Parallel()
	w := newSecWorld(t)
	c := &canaries{}
	things := w.things("parley.auth.", 1)
	maps.Copy(things.own, w.things("parley.topic.", 2).own)
	served := 0
	for n, m := range w.methods() {
		by := m.caller()
		if user, _ := secCaller(secBodies[strings.TrimPrefix(m.procedure, "/parley.")]); user == "gone" {
			by = fmt.Sprintf("spare-%d", n) // who may be signed out afterwards
		}
		w.call(m, by, c.fill(m.Input(), 4))
		name := strings.TrimPrefix(m.procedure, "/parley.")
		if template := secFree[name]; template != "" {
			for strings.Contains(template, "%64") {
				template = strings.Replace(template, "%64", base64.StdEncoding.EncodeToString([]byte(c.next())), 1)
			}
			kind := ""
			if strings.Contains(name, "SubscriptionService") { // a setting, which the audit has
				kind = "set"
			}
			for strings.Contains(template, "%") {
				template = strings.Replace(template, "%", strings.Replace(c.next(), "canary", "canary"+kind, 1), 1)
			}
			if a := w.call(m, "ann", w.filled(template, things.own)); a.status != http.StatusOK {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
			served++
		}
		for _, header := range []string{"Bearer " + c.next(), "Basic " + c.next(),
			"Bearer eyJ" + c.next() + ".e30." + c.next()} {
			w.send(m.procedure+"?token="+c.next(), "application/json", []byte(`{"`+c.next()+`":"`+c.next()+`"`), header)
		}
	}
	metrics := httptest.NewRecorder()
	w.p.metrics.Handler().ServeHTTP(metrics, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics",
		http.NoBody))
	audit := strings.ReplaceAll(w.rows(store.Audit), "canaryset", "")
	logs := secCode.ReplaceAllString(w.log.String(), "")
	for what, text := range map[string]string{"logs": logs, "metrics": metrics.Body.String(),
		"the audit": audit} {
		for _, secret := range []string{"canary", "@example.com"} {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("in %s: %s", what, text[max(0, at-300):min(len(text), at+100)])
			}
		}
		for _, token := range slices.Sorted(maps.Values(w.tokens)) {
			if strings.Contains(text, token[strings.LastIndexByte(token, '.')+1:]) {
				t.Errorf("%s have a token", what)
			}
		}
	}
	if c.n < 200 || served != len(secFree) {
		t.Errorf("%d canaries, %d of %d procedures succeed", c.n, served, len(secFree))
	}
	t.Logf("%d canaries", c.n)
}

// rows are all rows of a table, as text.
func (w *secWorld) rows(table store.Table) string {
	w.Helper()
	var text strings.Builder
	for scan := (store.Scan{Table: table, Segments: 1}); ; {
		page, err := w.p.backend.Store.Scan(w.Context(), scan)
		w.must(err)
		for _, r := range page.Rows {
			fmt.Fprintf(&text, "%s %v\n", r.Key, r.Item)
		}
		if scan.Cursor = page.Cursor; scan.Cursor == "" {
			return text.String()
		}
	}
}
