package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
)

// call sends a request and returns status and body.
func call(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(b))
}

// quoted is a schema in a request.
func quoted(text string) string {
	b, _ := json.Marshal(map[string]string{"schemaType": "PROTOBUF", "schema": text})
	return string(b)
}

// same says whether two texts are the same JSON.
func same(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		return a == b
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		return false
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

type step struct {
	method, path, body string
	status             int
	want               string
}

func steps(t *testing.T, base string, list []step) {
	t.Helper()
	for i, s := range list {
		status, got := call(t, s.method, base+s.path, s.body)
		if status != s.status || !same(t, s.want, got) {
			t.Errorf("step %d, %s %s: %d %s\nwant %d %s", i+1, s.method, s.path, status, got, s.status, s.want)
		}
	}
}

const text1 = `syntax = "proto3"; message Key { string id = 1; }`

// What Confluent shows of its registry, call by call: two subjects share a schema and
// its id, versions are deleted and come back under the next number, levels are set and
// asked for. Here the level of all is FULL, not BACKWARD.
func TestConfluentsExamples(t *testing.T) {
	_, base := serve(t, storetest.NewMemory(time.Now))
	q := quoted(text1)
	versionJSON := func(subject string, version int) string {
		return fmt.Sprintf(`{"subject":%q,"version":%d,"id":1,"schemaType":"PROTOBUF","schema":%q}`, subject, version, text1)
	}
	steps(t, base, []step{
		{"POST", "/subjects/Kafka-key/versions", q, 200, `{"id":1}`},
		{"POST", "/subjects/Kafka-value/versions", q, 200, `{"id":1}`},
		{"GET", "/subjects", "", 200, `["Kafka-key","Kafka-value"]`},
		{"GET", "/schemas/ids/1", "", 200, fmt.Sprintf(`{"schemaType":"PROTOBUF","schema":%q}`, text1)},
		{"GET", "/schemas/ids/1?fetchMaxId=true", "", 200,
			fmt.Sprintf(`{"schemaType":"PROTOBUF","schema":%q,"maxId":1}`, text1)},
		{"GET", "/schemas/ids/1/schema", "", 200, text1},
		{"GET", "/schemas/types", "", 200, `["PROTOBUF"]`},
		{"GET", "/schemas/ids/1/subjects", "", 200, `["Kafka-key","Kafka-value"]`},
		{"GET", "/schemas/ids/1/versions", "", 200,
			`[{"subject":"Kafka-key","version":1},{"subject":"Kafka-value","version":1}]`},
		{"GET", "/subjects/Kafka-value/versions", "", 200, `[1]`},
		{"GET", "/subjects/Kafka-value/versions/1", "", 200, versionJSON("Kafka-value", 1)},
		{"DELETE", "/subjects/Kafka-value/versions/1", "", 200, `1`},
		{"POST", "/subjects/Kafka-value/versions", q, 200, `{"id":1}`},
		{"DELETE", "/subjects/Kafka-value/versions/latest", "", 200, `2`},
		{"POST", "/subjects/Kafka-value/versions", q, 200, `{"id":1}`},
		{"GET", "/subjects/Kafka-value/versions/latest", "", 200, versionJSON("Kafka-value", 3)},
		{"GET", "/subjects/Kafka-value/versions/latest/schema", "", 200, text1},
		{"DELETE", "/subjects/Kafka-value", "", 200, `[3]`},
		{"POST", "/subjects/Kafka-key", q, 200, versionJSON("Kafka-key", 1)},
		{"POST", "/compatibility/subjects/Kafka-value/versions/latest", q, 200, `{"is_compatible":true}`},
		{"GET", "/config", "", 200, `{"compatibilityLevel":"FULL"}`},
		{"PUT", "/config", `{"compatibility":"NONE"}`, 200, `{"compatibility":"NONE"}`},
		{"PUT", "/config/Kafka-value", `{"compatibility":"BACKWARD"}`, 200, `{"compatibility":"BACKWARD"}`},
		{"GET", "/config/Kafka-value", "", 200, `{"compatibilityLevel":"BACKWARD"}`},
		{"DELETE", "/config/Kafka-value", "", 200, `{"compatibility":"BACKWARD"}`},
		{"GET", "/config/Kafka-value", "", 404,
			`{"error_code":40408,"message":"Subject 'Kafka-value' does not have subject-level compatibility configured"}`},
		{"GET", "/config/Kafka-value?defaultToGlobal=true", "", 200, `{"compatibilityLevel":"NONE"}`},
		{"DELETE", "/subjects/Kafka-value?permanent=true", "", 200, `[1,2,3]`},
		{"DELETE", "/subjects/Kafka-key", "", 200, `[1]`},
		{"GET", "/subjects", "", 200, `[]`},
		{"GET", "/subjects?deleted=true", "", 200, `["Kafka-key"]`},
		{"GET", "/mode", "", 200, `{"mode":"READWRITE"}`},
		{"GET", "/contexts", "", 200, `["."]`},
	})
}

// Refusals have the status, the code and the words of Confluent's registry.
func TestConfluentsRefusals(t *testing.T) {
	_, base := serve(t, storetest.NewMemory(time.Now))
	q := quoted(text1)
	refusal := func(code int, text string) string {
		return fmt.Sprintf(`{"error_code":%d,"message":%q}`, code, text)
	}
	outOfBounds := func(version string) string {
		return refusal(42202, "The specified version '"+version+
			`' is not a valid version id. Allowed values are between [1, 2^31-1] and the string "latest"`)
	}
	metadata := `{"schemaType":"PROTOBUF","schema":"x","metadata":{"properties":{"a":"b"}}}`
	steps(t, base, []step{
		{"GET", "/subjects/s/versions", "", 404, refusal(40401, "Subject 's' not found.")},
		{"GET", "/subjects/s/versions/1", "", 404, refusal(40401, "Subject 's' not found.")},
		{"DELETE", "/subjects/s", "", 404, refusal(40401, "Subject 's' not found.")},
		{"DELETE", "/subjects/s/versions/1", "", 404, refusal(40401, "Subject 's' not found.")},
		{"POST", "/subjects/s", q, 404, refusal(40401, "Subject 's' not found.")},
		{"POST", "/compatibility/subjects/s/versions/latest", q, 200, `{"is_compatible":true}`},
		{"POST", "/compatibility/subjects/s/versions", q, 200, `{"is_compatible":true}`},
		{"POST", "/compatibility/subjects/s/versions/1", q, 404, refusal(40402, "Version 1 not found.")},
		{"POST", "/subjects/s/versions", q, 200, `{"id":1}`},
		{"GET", "/subjects/s/versions/2", "", 404, refusal(40402, "Version 2 not found.")},
		{"DELETE", "/subjects/s/versions/2", "", 404, refusal(40402, "Version 2 not found.")},
		{"GET", "/subjects/s/versions/-1", "", 422, outOfBounds("-1")},
		{"DELETE", "/subjects/s/versions/-1", "", 422, outOfBounds("-1")},
		{"POST", "/compatibility/subjects/s/versions/-1", q, 422, outOfBounds("-1")},
		{"GET", "/subjects/s/versions/2147483648", "", 422, outOfBounds("2147483648")},
		{"POST", "/subjects/s/versions", `{"schemaType":"PROTOBUF","version":7,"schema":"syntax = \"proto3\"; message N {}"}`,
			422, refusal(42201, "Version is not one more than previous version")},
		{"POST", "/subjects/s", quoted(`syntax = "proto3"; message Other {}`), 404, refusal(40403, "Schema not found")},
		{"GET", "/schemas/ids/9", "", 404, refusal(40403, "Schema 9 not found")},
		{"GET", "/subjects/s/versions?deletedOnly=true", "", 200, `[]`},
		{"DELETE", "/subjects/s?permanent=true", "", 404,
			refusal(40405, "Subject 's' was not deleted first before being permanently deleted")},
		{"DELETE", "/subjects/s/versions/1?permanent=true", "", 404,
			refusal(40407, "Subject 's' Version 1 was not deleted first before being permanently deleted")},
		{"PUT", "/config/s", `{"compatibility":"NONE"}`, 200, `{"compatibility":"NONE"}`},
		{"DELETE", "/subjects/s", "", 200, `[1]`},
		{"GET", "/config/s", "", 404, refusal(40408, "Subject 's' does not have subject-level compatibility configured")},
		{"GET", "/subjects/s/versions?deletedOnly=true", "", 200, `[1]`},
		{"GET", "/subjects/s/versions/1/referencedby", "", 200, `[]`},
		{"DELETE", "/subjects/s", "", 404,
			refusal(40404, "Subject 's' was soft deleted.Set permanent=true to delete permanently")},
		{"DELETE", "/subjects/s/versions/1", "", 404,
			refusal(40406, "Subject 's' Version 1 was soft deleted.Set permanent=true to delete permanently")},
		{"DELETE", "/subjects/s/versions/latest", "", 404,
			refusal(40406, "Subject 's' Version latest was soft deleted.Set permanent=true to delete permanently")},
		{"DELETE", "/subjects/s/versions/1?permanent=true", "", 200, `1`},
		{"POST", "/subjects/m/versions", metadata, 422,
			refusal(42210, "Rules, metadata and tags are not offered: rules stand in the schema, as options")},
		{"POST", "/subjects/m", metadata, 422,
			refusal(42210, "Rules, metadata and tags are not offered: rules stand in the schema, as options")},
		{"PUT", "/config", `{"compatibility":"FULL","normalize":true}`, 422,
			refusal(422, "Only the compatibility of subjects can be configured; normalize is a parameter of requests")},
		{"PUT", "/config", `{"compatibility":7}`, 422,
			refusal(42203, "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, forward_transitive, and full_transitive")},
		{"POST", "/subjects/m/versions", q, 200, `{"id":1}`},
		{"GET", "/subjects/m/metadata?key=a&value=b", "", 404,
			refusal(40403, "Schema not found: schemas have no metadata here")},
		{"GET", "/subjects/none/metadata?key=a&value=b", "", 404, refusal(40401, "Subject 'none' not found.")},
		{"GET", "/subjects/:.:m/versions", "", 200, `[1]`},
		{"GET", "/subjects?subjectPrefix=:.:", "", 200, `["m"]`},
		{"GET", "/subjects?subjectPrefix=:.other:", "", 200, `[]`},
		{"GET", "/contexts/.other/subjects", "", 422,
			refusal(42208, `Contexts are not offered: all subjects are in the default one, "."`)},
		{"GET", "/subjects/:.other:m/versions", "", 422,
			refusal(42208, `The subject ":.other:m" is reserved; contexts are not offered`)},
	})
}

// Paths that exist answer other methods with 405 and what they take.
func TestMethods(t *testing.T) {
	_, base := serve(t, storetest.NewMemory(time.Now))
	for path, allow := range map[string]string{
		"/subjects": "GET", "/subjects/s": "DELETE, POST", "/subjects/s/versions": "GET, POST",
		"/subjects/s/versions/1": "DELETE, GET",
		"/schemas/ids/1":         "GET", "/config": "DELETE, GET, PUT", "/mode/s": "DELETE, GET, PUT",
		"/compatibility/subjects/s/versions/1": "POST",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 405 || res.Header.Get("Allow") != allow ||
			!same(t, string(b), `{"error_code":405,"message":"HTTP 405 Method Not Allowed"}`) {
			t.Errorf("%s: %d, Allow %q, %s", path, res.StatusCode, res.Header.Get("Allow"), b)
		}
	}
}

// In mode IMPORT a schema brings its id: without one it is refused, and the same content
// may have another id than here. An id has one content.
func TestImport(t *testing.T) {
	_, base := serve(t, storetest.NewMemory(time.Now))
	with := func(text, more string) string { return strings.TrimSuffix(quoted(text), "}") + more + "}" }
	other := `syntax = "proto3"; message Other { string id = 1; }`
	steps(t, base, []step{
		{"POST", "/subjects/s/versions", quoted(text1), 200, `{"id":1}`},
		{"POST", "/subjects/s/versions", with(text1, `,"id":40`), 422,
			`{"error_code":42205,"message":"Subject s is not in import mode"}`},
		{"PUT", "/mode", `{"mode":"IMPORT"}`, 422,
			`{"error_code":42205,"message":"Cannot import since found existing subjects"}`},
		{"PUT", "/mode/i", `{"mode":"IMPORT"}`, 200, `{"mode":"IMPORT"}`},
		{"POST", "/subjects/i/versions", quoted(other), 422,
			`{"error_code":42205,"message":"Subject i is not in read-write mode"}`},
		{"POST", "/subjects/i/versions", with(text1, `,"id":40,"version":3`), 200, `{"id":40}`},
		{"POST", "/subjects/i/versions", with(text1, `,"id":40,"version":3`), 200, `{"id":40}`},
		{"POST", "/subjects/i/versions", with(other, `,"id":40`), 422,
			`{"error_code":42205,"message":"Overwrite new schema with id 40 is not permitted."}`},
		{"POST", "/subjects/i/versions", with(other, `,"id":1`), 422,
			`{"error_code":42205,"message":"Overwrite new schema with id 1 is not permitted."}`},
		{"POST", "/subjects/i/versions", with(other, `,"id":41`), 200, `{"id":41}`},
		{"GET", "/subjects/i/versions", "", 200, `[3,4]`},
		{"GET", "/schemas/ids/40/versions", "", 200, `[{"subject":"i","version":3}]`},
		{"GET", "/schemas/ids/1/versions", "", 200, `[{"subject":"s","version":1}]`},
		{"POST", "/subjects/s/versions", quoted(text1), 200, `{"id":1}`},
		{"POST", "/subjects/u/versions", quoted(text1), 200, `{"id":1}`},
		{"POST", "/subjects/v/versions", quoted(`syntax = "proto3"; message V {}`), 200, `{"id":42}`},
		{"PUT", "/mode/s", `{"mode":"READONLY"}`, 200, `{"mode":"READONLY"}`},
		{"POST", "/subjects/s/versions", quoted(other), 422,
			`{"error_code":42205,"message":"Subject s is in read-only mode"}`},
	})
}

// Lists have all there is, however much, and what is asked for by offset and limit.
func TestLongLists(t *testing.T) {
	racetest.SkipSerial(t)
	st := storetest.NewMemory(time.Now)
	r := registry.New(st)
	const subjects = 1203
	for i := range subjects {
		if _, err := r.Register(t.Context(), fmt.Sprintf("s%04d", i), registry.Schema{Text: text1},
			registry.RegisterOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, base := serve(t, st)
	for path, want := range map[string]int{
		"/subjects": subjects, "/schemas": subjects, "/subjects?offset=1100": 103, "/subjects?limit=1": 1,
		"/schemas?offset=1200&limit=50":  3,
		"/subjects?limit=1101&offset=50": 1101, "/subjects?subjectPrefix=s11": 100,
		"/schemas?subjectPrefix=s11&latestOnly=true": 100, "/subjects?offset=5000": 0, "/subjects?limit=-1": subjects,
	} {
		status, body := call(t, "GET", base+path, "")
		var list []any
		if err := json.Unmarshal([]byte(body), &list); status != 200 || err != nil || len(list) != want {
			t.Errorf("%s: %d, %d entries, want %d, %v", path, status, len(list), want, err)
		}
	}
}
