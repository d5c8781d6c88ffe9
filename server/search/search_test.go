package search_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store/table"
)

var rewrite = flag.Bool("rewrite-envelopes", false, "write the golden files")

var at = time.Date(2026, 3, 4, 6, 7, 8, 9_000_000, time.FixedZone("", 3600))

// contents is one of each type.
func contents() map[string]search.Content {
	return map[string]search.Content{
		"search_impression": &searchv1.SearchImpression{SearchId: "s1", Query: `tea & "cake" <3`,
			ResultIds: []string{"msg_1", "msg_2"}, FirstPosition: 20},
		"search_result_summary": &searchv1.SearchResultSummary{SearchId: "s1", Query: "tea", TotalResults: 31, TookMs: 12,
			Filters: []string{"chat"}},
		"search_click":  &searchv1.SearchClick{SearchId: "s1", ResultId: "msg_2", Position: 21},
		"search_dwell":  &searchv1.SearchDwell{SearchId: "s1", ResultId: "msg_2", DwellMs: 4500},
		"ac_impression": &searchv1.AcImpression{SearchId: "a1", Prefix: "te", Suggestions: []string{"tea", "tea time"}},
		"ac_select":     &searchv1.AcSelect{SearchId: "a1", Prefix: "te", Suggestion: "tea time", Position: 1},
	}
}

// recorded is an event after the way through the store.
func recorded(t *testing.T, user string, e search.Event) search.Recorded {
	t.Helper()
	b := testkit.Value(search.Encode(user, e))(t)
	list := testkit.Value(search.Decode(table.SearchEvents{Stream: "srch_1", First: 17, Count: 1, Events: b}))(t)
	return list[0]
}

func envelope(t *testing.T, r search.Recorded) (search.Envelope, []byte) {
	t.Helper()
	e := testkit.Value(r.Envelope())(t)
	return e, testkit.Value(e.JSON())(t)
}

// KS03, KS04, KS05, KS06, KS07, KS08, KS09: each type has an envelope with exactly the listed keys, the same bytes each
// time, whose payload is what the schema says.
func TestEnvelopes(t *testing.T) {
	keys := []string{"schema_version", "event_id", "event_type", "dedup_key", "occurred_at", "producer", "aggregate_type",
		"aggregate_id", "payload"}
	for name, content := range contents() {
		_, text := envelope(t, recorded(t, "user_1", search.Event{ClientID: "c-1", OccurredAt: at, Content: content}))
		golden := filepath.Join("testdata", name+".json")
		if *rewrite {
			testkit.Must(t, os.WriteFile(golden, append(text, '\n'), 0o600))
		}
		if want := string(testkit.Value(os.ReadFile(golden))(t)); string(text)+"\n" != want {
			t.Errorf("%s is\n%s, expected\n%s", name, text, want)
		}
		fields := map[string]json.RawMessage{}
		testkit.Must(t, json.Unmarshal(text, &fields))
		order := regexp.MustCompile(`"([a-z_]+)":`).FindAllStringSubmatch(strings.SplitAfter(string(text), `"payload":`)[0], -1)
		for i, key := range keys {
			if len(order) != len(keys) || order[i][1] != key || len(fields) != len(keys) {
				t.Fatalf("%s has the keys %v, expected %v", name, order, keys)
			}
		}
		for key, want := range map[string]string{"schema_version": `"v1"`, "event_id": `"srch_1-17"`,
			"event_type": `"` + name + `"`, "producer": `"outbox-relay"`, "occurred_at": `"2026-03-04T05:07:08.009Z"`} {
			testkit.Equal(t, name+" "+key, string(fields[key]), want)
		}
		got := content.ProtoReflect().New().Interface().(search.Content)
		testkit.Must(t, (protojson.UnmarshalOptions{}).Unmarshal(fields["payload"], got))
		if !proto.Equal(got, content) || got.GetUserId() != "user_1" {
			t.Errorf("%s: the payload is %v, expected %v of user_1", name, got, content)
		}
	}
}

// KS06: 64 hex characters, the same for the same event and for no other.
func TestDedupKeys(t *testing.T) {
	click := func() search.Content { return &searchv1.SearchClick{SearchId: "s", ResultId: "r"} }
	key := func(user string, e search.Event) string {
		first, _ := envelope(t, recorded(t, user, e))
		e.Content = proto.Clone(e.Content).(search.Content)
		again, _ := envelope(t, recorded(t, user, e))
		if first.DedupKey != again.DedupKey || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(first.DedupKey) {
			t.Errorf("%s and %s, expected the same 64 digits", first.DedupKey, again.DedupKey)
		}
		return first.DedupKey
	}
	base := key("u", search.Event{ClientID: "c", OccurredAt: at, Content: click()})
	testkit.Equal(t, "later, with the same id", key("u", search.Event{ClientID: "c", OccurredAt: at.Add(time.Hour),
		Content: click()}), base)
	others := []string{base,
		key("v", search.Event{ClientID: "c", OccurredAt: at, Content: click()}),
		key("u", search.Event{ClientID: "d", OccurredAt: at, Content: click()}),
		key("u", search.Event{ClientID: "c", OccurredAt: at, Content: &searchv1.SearchDwell{SearchId: "s", ResultId: "r"}}),
		key("u", search.Event{OccurredAt: at, Content: click()}),
		key("u", search.Event{OccurredAt: at.Add(time.Millisecond), Content: click()}),
		key("u", search.Event{OccurredAt: at, Content: &searchv1.SearchClick{SearchId: "s", ResultId: "r", Position: 1}}),
	}
	slices.Sort(others)
	testkit.Equal(t, "different keys", len(slices.Compact(others)), len(others))
}

// KS11: an event of a newer version is published with what this version knows of it.
func TestNewerFieldsAreSkipped(t *testing.T) {
	r := recorded(t, "u", search.Event{OccurredAt: at, Content: &searchv1.SearchClick{SearchId: "s", ResultId: "r"}})
	r.Payload = protowire.AppendString(protowire.AppendTag(r.GetPayload(), 900, protowire.BytesType), "new")
	if _, text := envelope(t, r); !strings.Contains(string(text), `"result_id":"r"`) ||
		strings.Contains(string(text), "new") {
		t.Errorf("%s", text)
	}
	r.EventType = "search_share"
	if _, err := r.Envelope(); err == nil || !strings.Contains(err.Error(), "unknown type") {
		t.Errorf("%v, expected an unknown type", err)
	}
	r.EventType, r.Payload = "search_click", []byte{0xff}
	if _, err := r.Envelope(); err == nil || !strings.Contains(err.Error(), "decode event srch_1-17") {
		t.Errorf("%v, expected an error of decoding", err)
	}
}

// A row holds the encodings of its events one behind the other.
func TestRows(t *testing.T) {
	var all []byte
	for _, id := range []string{"a", "b", "c"} {
		all = append(all, testkit.Value(search.Encode("u", search.Event{ClientID: id, OccurredAt: at,
			Content: &searchv1.AcSelect{SearchId: "s", Suggestion: id}}))(t)...)
	}
	row := table.SearchEvents{Stream: "srch_1", First: 5, Count: 3, Events: all}
	for i, e := range testkit.Value(search.Decode(row))(t) {
		testkit.Equal(t, "id", e.ID, []string{"srch_1-5", "srch_1-6", "srch_1-7"}[i])
		testkit.Equal(t, "client's id", e.GetClientEventId(), []string{"a", "b", "c"}[i])
	}
	row.Count = 2
	if _, err := search.Decode(row); err == nil {
		t.Error("a row with more events than it says is read")
	}
	row.Events = []byte{0xff}
	if _, err := search.Decode(row); err == nil {
		t.Error("a row that is none is read")
	}
}

// KS24: the types have the topics that were agreed upon, which are declared with those of
// their dead letters (KS17).
func TestTopics(t *testing.T) {
	want := map[string]string{"search_impression": "search_impression_v1",
		"search_result_summary": "search_result_summary_v1",
		"search_click":          "search_click_v1", "search_dwell": "search_dwell_v1", "ac_impression": "ac_impression_v1",
		"ac_select": "ac_select_v1"}
	targets := search.DefaultTargets()
	testkit.Equal(t, "types", len(targets), len(want))
	for name, topic := range want {
		testkit.Equal(t, name, targets[name], search.Target{Topic: topic, Key: search.KeyDedup})
		testkit.Equal(t, "partitions of "+topic, kafka.Partitions(topic), 8)
		testkit.Equal(t, "partitions of "+topic+".dlq", kafka.Partitions(topic+".dlq"), 1)
		testkit.Equal(t, "dead letters", targets[name].DeadLetters(), topic+".dlq")
	}
	if !slices.Equal(targets.Topics(), kafka.SearchTopics) || len(targets.Undeclared()) != 0 {
		t.Errorf("%v are declared, expected %v", kafka.SearchTopics, targets.Topics())
	}
}

// KS25, KS10: types go elsewhere by a setting, and the search may be the key.
func TestParseTargets(t *testing.T) {
	targets := testkit.Value(search.ParseTargets("search_click=clicks.eu, ac_select=ac_impression_v1,search_dwell=d:aggregate"))(t)
	want := search.DefaultTargets()
	want["search_click"] = search.Target{Topic: "clicks.eu", Key: search.KeyDedup}
	want["ac_select"] = search.Target{Topic: "ac_impression_v1", Key: search.KeyDedup}
	want["search_dwell"] = search.Target{Topic: "d", Key: search.KeyAggregate}
	for name := range want {
		testkit.Equal(t, name, targets[name], want[name])
	}
	var names []string
	for _, topic := range targets.Undeclared() {
		names = append(names, topic.Name)
		if topic.Partitions < 1 || topic.Configs["cleanup.policy"] != "delete" {
			t.Errorf("%+v", topic)
		}
	}
	for _, name := range []string{"messages.persisted.eu", "parleys", "my_dead_letters"} { // they are nobody's
		testkit.Equal(t, name, testkit.Value(search.ParseTargets("search_click=" + name))(t)["search_click"].Topic, name)
	}
	testkit.Equal(t, "undeclared topics", strings.Join(names, " "), "clicks.eu clicks.eu.dlq d d.dlq")
	for text, says := range map[string]string{
		"search_share=x": "TYPE one of search_impression", "search_click": "TYPE=TOPIC", "search_click=": "1 to 240",
		"search_click=a b": "1 to 240", "search_click=..": "1 to 240", "search_click=" + strings.Repeat("x", 241): "1 to 240",
		"search_click=x:random":                       "dedup or aggregate",
		"search_click=x.dlq":                          "does not end with .dlq",
		"search_click=search_dwell_v1.dlq":            "does not end with .dlq",
		"search_click=messages.persisted":             "taken by the declared topic messages.persisted",
		"search_click=memberships.changed":            "taken by the declared topic memberships.changed",
		"search_click=chats.created:aggregate":        "taken by the declared topic chats.created",
		"search_click=dead_letters":                   "taken by the declared topic dead_letters",
		"search_click=messages_persisted":             "taken by the declared topic messages.persisted",
		"search_click=Dead.Letters":                   "taken by the declared topic dead_letters",
		"search_click=search.dwell.v1":                "taken by the declared topic search_dwell_v1",
		"search_click=messages.persisted.v2":          "later versions of messages.persisted",
		"search_click=chats.created.v":                "later versions of chats.created",
		"search_click=parley.topics.state":            "internal",
		"search_click=parley.t.orders":                "internal",
		"search_click=__consumer_offsets":             "internal",
		"search_click=__transaction_state":            "internal",
		"search_click=x:aggregate,ac_select=x":        "have the same key",
		"search_click=search_impression_v1:aggregate": "have the same key",
		"search_click=a.b,ac_select=a_b":              "tells a.b from a_b",
		"search_click=A.b,ac_select=a.b":              "tells A.b from a.b",
		"search_click=x,ac_select=x_dlq":              "tells x.dlq from x_dlq",
		"search_click=x.DLQ,ac_select=x":              "tells x.DLQ from x.dlq",
	} {
		if _, err := search.ParseTargets(text); err == nil || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, expected %q", text, err, says)
		}
	}
}

// A dead letter has the origin of its event and why it is one.
func TestDeadLetter(t *testing.T) {
	d := search.DeadLetter{OriginalTopic: "search_click_v1", OriginalPartition: 3, OriginalKey: "k", EventID: "srch_1-17",
		EventType: "search_click", Error: "too large", Attempts: 5, Event: json.RawMessage(`{"a":1}`)}
	testkit.Equal(t, "the letter", string(testkit.Value(d.JSON(at))(t)),
		`{"original_topic":"search_click_v1","original_partition":3,`+
			`"original_key":"k","event_id":"srch_1-17","event_type":"search_click","error":"too large","attempts":5,`+
			`"failed_at":"2026-03-04T05:07:08.009Z","event":{"a":1}}`)
}

func BenchmarkEnvelope(b *testing.B) {
	t := &testing.T{}
	r := recorded(t, "user_1", search.Event{ClientID: "c-1", OccurredAt: at, Content: contents()["search_impression"]})
	b.ReportAllocs()
	for b.Loop() {
		e, err := r.Envelope()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := e.JSON(); err != nil {
			b.Fatal(err)
		}
	}
}
