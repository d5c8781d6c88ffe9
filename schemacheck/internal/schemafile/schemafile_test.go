package schemafile

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
)

const whole = `version: 1
events: [shop.v1]
topics: [orders]
levels:
  - {topic: orders, policy: backward}
waivers:
  - rule: N01
    subject: shop.v1.Order.*
    reason: nobody reads it yet
    owner: orders
    expires: 2026-12-31
lint:
  past: [Shipped]
  required: [key]
`

// What a file does not say in full is refused, and says what is wrong.
func TestParse(t *testing.T) {
	f, err := Parse([]byte(whole))
	if err != nil || len(f.Waivers) != 1 || f.Levels[0].Parsed.String() != "BACKWARD" {
		t.Fatal(f, err)
	}
	for says, change := range map[string][2]string{
		"field event not found":           {"events:", "event:"},
		"field owner_ not found":          {"owner:", "owner_:"},
		"version must be 1":               {"version: 1", "version: 2"},
		"reason is missing":               {"reason: nobody reads it yet", "reason: ''"},
		"owner is missing":                {"    owner: orders\n", ""},
		"expires is missing":              {"    expires: 2026-12-31\n", ""},
		"is no day like 2026-12-31":       {"2026-12-31", "soon"},
		"is no rule":                      {"rule: N01", "rule: names"},
		"\"FIELD_RENAMD\" is no rule":     {"rule: N01", "rule: FIELD_RENAMD"},
		"it would waive the rule itself":  {"shop.v1.Order.*", "'*'"},
		"is no pattern":                   {"shop.v1.Order.*", "'shop.['"},
		"give topic or events":            {"topic: orders, policy", "policy"},
		"policy \"sideways\"":             {"backward", "sideways"},
		"more than one document":          {"version: 1", "version: 1\n---\nversion: 1"},
		"more than 1000 entries":          {"[orders]", "[" + strings.Repeat("a,", 1001) + "]"},
		"more than 500 characters":        {"[orders]", "[" + strings.Repeat("a", 501) + "]"},
		"larger than 1048576 bytes":       {"version: 1", "# " + strings.Repeat("a", 1<<20) + "\nversion: 1"},
		"cannot unmarshal !!map into str": {"[shop.v1]", "[{a: b}]"},
	} {
		if _, err := Parse([]byte(strings.Replace(whole, change[0], change[1], 1))); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q", change, err, says)
		}
	}
}

// A waiver holds for what it names, through its last day.
func TestWaiver(t *testing.T) {
	var f *File
	for _, spelling := range []string{"N01", "FIELD_RENAMED"} {
		var err error
		if f, err = Parse([]byte(strings.Replace(whole, "rule: N01", "rule: "+spelling, 1))); err != nil {
			t.Fatal(err)
		}
		w := f.Waivers[0]
		if !w.Covers(rule.FieldRenamed, "shop.v1.Order.id") || w.Covers(rule.FieldRenamedSameJSONName, "shop.v1.Order.id") ||
			w.Covers(rule.FieldRenamed, "shop.v1.Bill.id") {
			t.Errorf("a waiver of %s covers other findings than it names", spelling)
		}
	}
	w := f.Waivers[0]
	last := time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC)
	if w.Expired(last) || !w.Expired(last.Add(time.Second)) {
		t.Error("does not end with its last day")
	}
	if !f.Allows("orders") || f.Allows("bills") || !(&File{}).Allows("bills") {
		t.Error("topics")
	}
	// A short id that is not known here was one of another release: it waives nothing.
	other, err := Parse([]byte(strings.Replace(whole, "rule: N01", "rule: Q99", 1)))
	if err != nil || other.Waivers[0].Covers("", "shop.v1.Order.id") {
		t.Errorf("an unknown short id: %v", err)
	}
}
