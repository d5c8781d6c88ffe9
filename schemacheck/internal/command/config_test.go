package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/schemacheck/internal/report"
)

// declared is a tree with one declared event, a type that it uses, and an API.
func declared(change ...string) map[string]string {
	r := strings.NewReplacer(change...)
	files := map[string]string{
		"shop/v1/options.proto": strings.Replace(strings.Replace(placed, "import \"shop/v1/item.proto\";\n", "", 1),
			"int32 version = 3;", "int32 version = 3; string key = 4; string owner = 5;", 1),
		"shop/v1/item.proto":   item,
		"shop/v1/placed.proto": strings.Replace(event, "version: 1", `version: 1 key: "order_id"`, 1),
		"store/v1/store.proto": `syntax = "proto3";
package store.v1;
service Store { rpc Open(OpenRequest) returns (OpenResponse); }
message OpenRequest { string name = 1; }
message OpenResponse {}
`,
	}
	for name, text := range maps.Clone(files) {
		files[name] = r.Replace(text)
	}
	return files
}

// A scope that finds nothing is no success.
func TestNothingToJudge(t *testing.T) {
	t.Parallel()
	api := repository(t, map[string]string{"store/v1/store.proto": declared()["store/v1/store.proto"]})
	expect(t, api, Failed, "nothing to judge: --scope event finds no event in the working tree; --events PATTERN",
		"--base", "main", "--scope", "event")
	expect(t, api, Clean, "judged as API: store/v1/store.proto", "--base", "main", "--scope", "api")
	expect(t, api, Failed, "nothing to judge", "lint")
	expect(t, api, Failed, "nothing to judge", "registry", "verify", "--registry", "http://127.0.0.1:1")
	events := declared()
	delete(events, "store/v1/store.proto")
	both := repository(t, declared())
	expect(t, both, Clean, "not judged, as the scope leaves it out: shop/v1/options.proto, store/v1/store.proto", "--base",
		"main", "--scope", "event")
	expect(t, both, Clean, "not judged, as the scope leaves it out: shop/v1/placed.proto", "--base", "main", "--scope",
		"api")
	expect(t, both, Failed, "--scope all finds no file", "--base", "main", "--exclude", "shop", "--exclude", "store")
}

// An event that declares nothing is judged as one although a service streams it.
func TestEventOfAService(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"shop/v1/order_placed.proto": "syntax = \"proto3\";\npackage shop.v1;\nmessage OrderPlaced { oneof by { string card = 1; } }\n",
		"shop/v1/money.proto":        "syntax = \"proto3\";\npackage shop.v1;\nmessage Money { oneof as { string text = 1; } }\n",
		"shop/v1/orders.proto": `syntax = "proto3";
package shop.v1;
import "shop/v1/money.proto";
import "shop/v1/order_placed.proto";
service Orders { rpc Watch(Money) returns (stream OrderPlaced); }
`,
	}
	dir := repository(t, files)
	got := expect(t, dir, Clean, "judged as events: shop.v1.OrderPlaced; with 0 types", "--base", "main")
	if !strings.Contains(got.out, "judged as API: shop/v1/money.proto, shop/v1/orders.proto\n") {
		t.Error(got.out)
	}
	grown := strings.NewReplacer("string card = 1;", "string card = 1; string cash = 2;", "string text = 1;",
		"string text = 1; int64 cents = 2;")
	for name := range files {
		write(t, dir, map[string]string{name: grown.Replace(files[name])})
	}
	got = expect(t, dir, Findings, "block ONEOF_CASE_ADDED (O01) shop.v1.OrderPlaced.cash", "--base", "main")
	if strings.Contains(got.out, "Money") {
		t.Errorf("the API's type is judged as an event: %s", got.out)
	}
	expect(t, dir, Findings, "block ONEOF_CASE_ADDED (O01) shop.v1.Money.cents", "--base", "main", "--events",
		"shop/v1/money.proto")
}

// JSON says what was judged as what.
func TestJudgedInJSON(t *testing.T) {
	t.Parallel()
	dir := repository(t, declared())
	var r report.Report
	if err := json.Unmarshal([]byte(run(t, dir, "--base", "main", "--format", "json").out), &r); err != nil {
		t.Fatal(err)
	}
	want := `{[{shop.v1.OrderPlaced shop/v1/placed.proto true orders 1}] [shop.v1.Item] [shop/v1/options.proto store/v1/store.proto] []}`
	if got := fmt.Sprint(r.Judged); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func at(t *testing.T, day, dir string, args ...string) outcome {
	t.Helper()
	now, err := time.Parse(time.DateOnly, day)
	if err != nil {
		t.Fatal(err)
	}
	var out, msg bytes.Buffer
	code := Run(t.Context(), args, Env{Dir: dir, Stdout: &out, Stderr: &msg, Getenv: func(string) string { return "" },
		Now: func() time.Time { return now }})
	return outcome{code, out.String(), msg.String()}
}

// A waiver lets one finding pass and says so each time; on the day after its last it
// blocks, whether or not there is anything to waive.
func TestWaivers(t *testing.T) {
	t.Parallel()
	const waiver = "version: 1\nwaivers:\n  - {rule: N01, subject: shop.v1.Item.article, reason: nobody reads it, owner: orders, expires: 2026-05-31}\n"
	dir := repository(t, declared())
	write(t, dir, declared("string sku", "string article"))
	expect(t, dir, Findings, "block FIELD_RENAMED (N01) shop.v1.Item.article", "--base", "main")
	write(t, dir, map[string]string{"schemacheck.yaml": waiver})
	line := "waived: FIELD_RENAMED (N01) shop.v1.Item.article: field renamed (sku to article) until 2026-05-31 by orders: nobody reads it\n"
	for _, tt := range []struct {
		day  string
		code int
		says string
	}{
		{"2026-05-31", Clean, line},
		{"2026-05-31", Clean, "compatible: 0 blocks, 0 warnings, 1 waived; "},
		{"2026-06-01", Findings, "block FIELD_RENAMED (N01)"},
		{"2026-06-01", Findings, "block: schemacheck.yaml: a waiver has expired; remove it or agree on another day: N01 of shop.v1.Item.article"},
	} {
		if got := at(t, tt.day, dir, "--base", "main"); got.code != tt.code || !strings.Contains(got.out, tt.says) {
			t.Errorf("%s: exit %d\n%s%s", tt.day, got.code, got.out, got.err)
		}
	}
	if got := at(t, "2026-05-31", dir, "--base", "main", "--format", "sarif"); !strings.Contains(got.out,
		`"justification": "nobody reads it (orders, until 2026-05-31)"`) {
		t.Error(got.out)
	}
	if got := at(t, "2026-05-31", dir, "--base", "main", "--format", "github"); !strings.Contains(got.out,
		"::notice title=schemacheck%3A waived::FIELD_RENAMED (N01) ") {
		t.Error(got.out)
	}
	if got := at(t, "2026-05-31", dir, "diff", "--base", "main"); got.code != Clean || !strings.Contains(got.out, line) {
		t.Error(got.out)
	}
	// Neither base's file nor none has the waiver.
	for _, config := range []string{"base", "none"} {
		if got := at(t, "2026-05-31", dir, "--base", "main", "--config", config); got.code != Findings ||
			!strings.Contains(got.out, "block FIELD_RENAMED (N01)") {
			t.Errorf("--config %s: exit %d\n%s", config, got.code, got.out)
		}
	}
	write(t, dir, declared())
	if got := at(t, "2026-05-31", dir, "--base", "main"); got.code != Clean ||
		!strings.Contains(got.out, "note: schemacheck.yaml: a waiver applies to nothing here: N01") {
		t.Errorf("unused: exit %d\n%s", got.code, got.out)
	}
	if got := at(t, "2026-06-01", dir, "--base", "main"); got.code != Findings {
		t.Errorf("unused and expired: exit %d\n%s", got.code, got.out)
	}
}

// schemacheck.yaml is read from the tree that is judged, and says what flags say.
func TestConfig(t *testing.T) {
	t.Parallel()
	dir := repository(t, declared())
	for name, tt := range map[string]struct {
		yaml string
		code int
		says string
	}{
		"unknown key": {"version: 1\nevent: [x]\n", Failed,
			"schemacheck.yaml: unmarshal errors: line 2: field event not found"},
		"no version":    {"events: []\n", Failed, "schemacheck.yaml: version must be 1"},
		"no such event": {"version: 1\nevents: [bills]\n", Failed, "schemacheck.yaml: events bills matches no file"},
		"events": {"version: 1\nevents: [store.v1]\n", Clean,
			"judged as events: shop.v1.OrderPlaced version 1 on orders; with 3 types"},
		"exclude":    {"version: 1\nexclude: [store]\n", Clean, "3 files of"},
		"policy":     {"version: 1\npolicy: backward\n", Clean, "under BACKWARD"},
		"bad policy": {"version: 1\npolicy: sideways\n", Failed, "policy sideways"},
		"strict":     {"version: 1\nstrict: true\n", Clean, "compatible"},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, dir, map[string]string{"schemacheck.yaml": tt.yaml})
			expect(t, dir, tt.code, tt.says, "--base", "main")
			expect(t, filepath.Join(dir, "store"), tt.code, tt.says, "--base", "main", "--head", dir)
			git(t, dir, "add", ".")
			expect(t, dir, tt.code, tt.says, "--base", "main", "--head", ":index")
		})
	}
	expect(t, dir, Failed, "--config nowhere.yaml: a file, head, base or none", "--base", "main", "--config",
		"nowhere.yaml")
}

// Each event has the level of its topic or pattern; a type has those of all events
// that use it.
func TestLevels(t *testing.T) {
	t.Parallel()
	files := func(change ...string) map[string]string {
		all := declared()
		all["shop/v1/sent.proto"] = strings.NewReplacer("OrderPlaced", "BillSent", `"orders"`, `"bills"`, "order_id",
			"bill_id", "repeated Item items = 2;", "oneof x { string a = 3; }").Replace(all["shop/v1/placed.proto"])
		for name, text := range all {
			all[name] = strings.NewReplacer(change...).Replace(text)
		}
		return all
	}
	dir := repository(t, files())
	write(t, dir, files("string a = 3;", "string a = 3; string b = 4;")) // old readers break
	for levels, code := range map[string]int{
		"":                                               Findings,
		"{topic: bills, policy: BACKWARD}":               Clean,
		"{topic: bills, policy: FORWARD}":                Findings,
		"{topic: bills, policy: NONE}":                   Clean,
		"{topic: orders, policy: BACKWARD}":              Findings,
		"{events: shop.v1.Bill*, policy: BACKWARD}":      Clean,
		"{events: shop/v1/sent.proto, policy: BACKWARD}": Clean,
		"{events: shop.v1, policy: BACKWARD}":            Clean,
		"{topic: bills, policy: FULL}, {events: shop.v1, policy: BACKWARD}": Findings,
	} {
		write(t, dir, map[string]string{"schemacheck.yaml": "version: 1\nlevels: [" + levels + "]\n"})
		expect(t, dir, code, "compatible", "--base", "main")
	}
	// A type of both events follows the stricter one.
	both := files("oneof x { string a = 3; }", "Item item = 3;")
	write(t, dir, both)
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "two")
	write(t, dir, map[string]string{
		"shop/v1/item.proto": strings.Replace(item, "int64 count", "int32 count", 1), // new readers cut large counts
		"schemacheck.yaml":   "version: 1\nlevels: [{topic: bills, policy: FORWARD}]\n",
	})
	expect(t, dir, Findings, "shop.v1.Item.count", "--base", "main")
	write(t, dir, map[string]string{
		"schemacheck.yaml": "version: 1\nlevels: [{topic: bills, policy: FORWARD}, {topic: orders, policy: NONE}]\n"})
	got := run(t, dir, "--base", "main")
	if strings.Contains(got.out, "breaks new consumers on old events (") {
		t.Errorf("exit %d\n%s", got.code, got.out)
	}
}

// New events are checked with each comparison, all of them by lint: names that are not in the
// past tense, names that say "updated" over nothing that says what, and events that lack what
// every event carries (EV04, EV05, EV06).
func TestLint(t *testing.T) {
	t.Parallel()
	dir := repository(t, declared("OrderPlaced", "PlaceOrder"))
	expect(t, dir, Clean, "compatible: 0 blocks, 0 warnings", "--base", "main")
	expect(t, dir, Clean, "shop/v1/placed.proto:5:1: warn EVENT_NAME_NOT_PAST_TENSE (A01) shop.v1.PlaceOrder: name of an event is not in the past tense (PlaceOrder)", "lint")
	expect(t, dir, Findings, "warn EVENT_NAME_NOT_PAST_TENSE (A01)", "lint", "--strict")
	write(t, dir, map[string]string{"schemacheck.yaml": "version: 1\nlint:\n  past: [order]\n"})
	expect(t, dir, Clean, "compatible: 0 blocks, 0 warnings", "lint")
	more := strings.Replace(event, "version: 1", `version: 1 key: "order_id"`, 1)
	for name, tt := range map[string]struct {
		event, yaml string
		code        int
		says        string
	}{
		"sparse": {strings.NewReplacer("OrderPlaced", "OrderUpdated", "repeated Item items = 2;",
			"int64 updated_at = 2;").Replace(more), "", Clean,
			"warn EVENT_CHANGE_NOT_NAMED (A02) shop.v1.OrderUpdated: event says that something changed and not what"},
		"carries what": {strings.NewReplacer("OrderPlaced", "OrderUpdated", "repeated Item items = 2;",
			"repeated Item items = 2; string note = 3;").Replace(more), "", Clean, "compatible: 0 blocks, 0 warnings"},
		"required": {strings.ReplaceAll(more, "OrderPlaced", "OrderSent"), "lint: {required: [topic, owner]}", Findings,
			"block EVENT_OPTION_FIELD_MISSING (A03) shop.v1.OrderSent: required field of the event option is not set (owner)"},
		"no such field": {strings.ReplaceAll(more, "OrderPlaced", "OrderSent"), "lint: {required: [team]}", Findings,
			"block EVENT_OPTION_FIELD_MISSING (A03) shop.v1.OrderSent"},
		"carried": {strings.ReplaceAll(more, "OrderPlaced", "OrderSent"), "lint: {carries: [order_id, items.sku]}", Clean,
			"compatible: 0 blocks, 0 warnings"},
		"not carried": {strings.ReplaceAll(more, "OrderPlaced", "OrderSent"), "lint: {carries: [order_id, actor]}", Findings,
			"block EVENT_FIELD_MISSING (A05) shop.v1.OrderSent: event lacks a field that every event carries (actor)"},
		"not carried inside": {strings.ReplaceAll(more, "OrderPlaced", "OrderSent"),
			"lint: {carries: [items.actor, order_id.actor]}", Findings,
			"block EVENT_FIELD_MISSING (A05) shop.v1.OrderSent: event lacks a field that every event carries (items.actor)"},
		"topic": {strings.ReplaceAll(more, "OrderPlaced", "OrderSent"), "topics: [bills]", Findings,
			"block EVENT_TOPIC_UNKNOWN (A04) shop.v1.OrderSent: topic is not one of the known ones (orders)"},
		"known topic": {strings.ReplaceAll(more, "OrderPlaced", "OrderSent"), "topics: [bills, orders]", Clean,
			"compatible: 0 blocks, 0 warnings"},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, dir, map[string]string{"shop/v1/new.proto": tt.event, "schemacheck.yaml": "version: 1\n" + tt.yaml + "\n"})
			expect(t, dir, tt.code, tt.says, "--base", "main")
		})
	}
}

// A tree that declares nothing is not led from ci to release and back.
func TestReleaseWithoutDeclaration(t *testing.T) {
	t.Parallel()
	api := repository(t, map[string]string{"store/v1/store.proto": declared()["store/v1/store.proto"]})
	expect(t, api, Failed, "a tree without events is compared by schemacheck --base REF", "ci")
	expect(t, api, Failed, "an API is not released, it is compared by schemacheck --base REF", "release")
	dir := repository(t, map[string]string{"shop/v1/note.proto": note})
	expect(t, dir, Failed, "schemacheck release makes it", "ci")
	expect(t, dir, Clean, "released as 0001", "release")
	got := expect(t, dir, Clean, "judged as events: shop.v1.NoteTaken;", "ci")
	if strings.Contains(got.out, "has read 0 released") {
		t.Error(got.out)
	}
	write(t, dir, map[string]string{"shop/v1/note.proto": strings.ReplaceAll(note, "string text", "string words")})
	expect(t, dir, Findings, "block FIELD_RENAMED (N01) shop.v1.NoteTaken.words", "ci")
	write(t, dir, map[string]string{"shop/v1/note.proto": note,
		"schemacheck.yaml": "version: 1\nreleased: kept\nevents: [shop]\n"})
	expect(t, dir, Clean, "released as 0001; commit kept", "release")
	expect(t, dir, Clean, "against 0001.binpb", "ci")
}

// What ci and release find can be waived too, what no longer reads included.
func TestWaivedRelease(t *testing.T) {
	t.Parallel()
	dir := repository(t, declared())
	expect(t, dir, Clean, "released as 0001", "release")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "released")
	write(t, dir, declared("string sku", "string article"))
	expect(t, dir, Findings, "block SAMPLE_NOT_DECODED (W02) shop.v1.OrderPlaced: released event is not read any more (head reads its binary form and its JSON form as different events)", "ci")
	write(t, dir, map[string]string{"schemacheck.yaml": `version: 1
waivers:
  - {rule: N01, subject: shop.v1.Item.article, reason: r, owner: o, expires: 2999-01-01}
  - {rule: SAMPLE_NOT_DECODED, subject: shop.v1.OrderPlaced, reason: r, owner: o, expires: 2999-01-01}
`})
	expect(t, dir, Clean, "compatible: 0 blocks, 0 warnings, 2 waived", "ci")
	expect(t, dir, Clean, "waived: FIELD_RENAMED (N01) shop.v1.Item.article", "release")
}

// Each topic has a page, the pages name only commands, flags and topics that exist,
// and no line is wider than a terminal.
func TestHelp(t *testing.T) {
	t.Parallel()
	topic := regexp.MustCompile(`schemacheck help ([a-z]+)`)
	command := regexp.MustCompile(`(?m)^\s*schemacheck ([a-z]+)`)
	option := regexp.MustCompile(`--[a-z]+`)
	known := " --include --include_imports --include_source_info --github --cached --quiet "
	for line := range strings.Lines(page("")) {
		if fields := strings.Fields(line); len(fields) > 0 {
			known += fields[0] + " "
		}
	}
	for name := range topics {
		text := expect(t, t.TempDir(), Clean, "", append([]string{"help"}, strings.Fields(name)...)...).out
		for line := range strings.Lines(text) {
			if len([]rune(line)) > 100 {
				t.Errorf("%s: %q", name, line)
			}
		}
		for _, m := range topic.FindAllStringSubmatch(text, -1) {
			if _, ok := topics[m[1]]; !ok && m[1] != "json" {
				t.Errorf("%s: no topic %q", name, m[1])
			}
		}
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			if got := run(t, t.TempDir(), m[1], "--help"); got.code != Clean && m[1] != "help" && m[1] != "says" &&
				m[1] != "registry" {
				t.Errorf("%s: schemacheck %s: %s", name, m[1], got.err)
			}
		}
		for _, flag := range option.FindAllString(text, -1) {
			if !strings.Contains(known, " "+strings.SplitN(flag, "_", 2)[0]) {
				t.Errorf("%s: %s is no flag", name, flag)
			}
		}
	}
	for _, want := range []string{"rules", "ci", "registry", "policy", "events", "config", "sources"} {
		if !strings.Contains(page(""), want+" ") && !strings.Contains(page(""), want+",") {
			t.Errorf("the first page does not name %s", want)
		}
		expect(t, t.TempDir(), Clean, "", "help", want)
	}
	expect(t, t.TempDir(), Failed, "there are ci, config, events, policy, registry, rules, sources and json", "help",
		"nothing")
	expect(t, t.TempDir(), Clean, "schemacheck ", "version")
	// The example of the configuration is one.
	_, example, _ := strings.Cut(page("config"), "writes it.\n")
	example, _, _ = strings.Cut(example, "  A waiver is printed")
	dir := repository(t, declared())
	write(t, dir, map[string]string{"schemacheck.yaml": strings.NewReplacer("[proto/event, shop.v1]", "[shop.v1]",
		"2026-06-30", "2999-01-01").Replace(example)})
	expect(t, dir, Clean, "a waiver applies to nothing here", "--base", "main")
}

// A foreign tree is judged as it is, and init writes what was found.
func TestInit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files map[string]string
		has   string
	}{
		"declared": {declared(), "topics:\n  - \"orders\"\n"},
		"guessed":  {shop(), "events:\n  - \"shop/v1/order.proto\"\n"},
		"API":      {map[string]string{"store/v1/store.proto": declared()["store/v1/store.proto"]}, "events: []\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := repository(t, tt.files)
			expect(t, dir, Clean, "compatible", "--base", "main")
			expect(t, dir, Clean, "wrote schemacheck.yaml\n", "init", "--github")
			b, err := os.ReadFile(filepath.Join(dir, "schemacheck.yaml"))
			if err != nil || !strings.Contains(string(b), tt.has) {
				t.Errorf("%v\n%s", err, b)
			}
			expect(t, dir, Clean, "compatible", "--base", "main")
			expect(t, dir, Failed, "schemacheck.yaml is there already; nothing was written", "init")
			b, err = os.ReadFile(filepath.Join(dir, ".github/workflows/schemacheck.yml"))
			if err != nil || strings.Contains(string(b), "VERSION") {
				t.Errorf("%v\n%s", err, b)
			}
		})
	}
}
