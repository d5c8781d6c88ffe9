package rule_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
)

// A rule is found by its id and by its alias, and by nothing else.
func TestParse(t *testing.T) {
	readable, short := regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$`), regexp.MustCompile(`^[A-Z][0-9]{2}$`)
	ids, codes := map[rule.ID]bool{}, map[string]bool{}
	for _, r := range append(rule.All(), rule.Naming()...) {
		if !readable.MatchString(string(r.ID)) || !short.MatchString(r.Code) {
			t.Errorf("%s and %s: an id is like FIELD_RENAMED, an alias like N01", r.ID, r.Code)
		}
		if ids[r.ID] || codes[r.Code] {
			t.Errorf("%s or %s names two rules", r.ID, r.Code)
		}
		ids[r.ID], codes[r.Code] = true, true
		for _, s := range []string{string(r.ID), r.Code} {
			if id, ok := rule.Parse(s); !ok || id != r.ID {
				t.Errorf("Parse(%q) = %s, %t, want %s", s, id, ok, r.ID)
			}
		}
	}
	for _, s := range []string{"", "N99", "FIELD_RENAMED_TWICE", "n01", "field_renamed", "FIELD_RENAMED (N01)"} {
		if id, ok := rule.Parse(s); ok {
			t.Errorf("Parse(%q) = %s, want none", s, id)
		}
	}
	if got := rule.FieldRenamed.Label(); got != "FIELD_RENAMED (N01)" {
		t.Errorf("label: %q", got)
	}
}

// Ids are stable: waivers, configurations of buf and reports name rules by them.
func TestAliases(t *testing.T) {
	for code, want := range map[string]rule.ID{
		"F02": "FIELD_ADDED_OPTIONAL", "R02": "FIELD_REMOVED_NOT_RESERVED", "N01": "FIELD_RENAMED",
		"C01": "FIELD_NUMBER_CHANGED",
		"T01": "INTEGER_WIDENED", "L13": "FIELD_BECAME_REQUIRED", "P02": "PRESENCE_TO_IMPLICIT", "O01": "ONEOF_CASE_ADDED",
		"E05": "ENUM_VALUE_RENAMED", "M05": "MESSAGE_ADDED_TO_REGISTERED_FILE", "K07": "FILE_OPTION_CHANGED",
		"D05": "EXTENSION_REMOVED",
		"U01": "UTF8_VALIDATION_ENABLED", "V01": "RESERVED_NUMBER_REMOVED", "S02": "RPC_REMOVED",
		"X01": "EVENT_TOPIC_CHANGED",
		"Y01": "VALIDATION_TIGHTENED", "H01": "ENUM_ZERO_NOT_UNSPECIFIED", "W02": "SAMPLE_NOT_DECODED",
		"A01": "EVENT_NAME_NOT_PAST_TENSE",
	} {
		if id, ok := rule.Parse(code); !ok || id != want {
			t.Errorf("%s is %s, want %s", code, id, want)
		}
	}
}

// What the gate does with a rule beside its verdict is in the table, by rule.
func TestTraits(t *testing.T) {
	want := map[rule.Traits]string{
		rule.NewestOnly:   "H01 H02 H03 H04 H05 H06 X03",
		rule.NotExecuted:  "W04 W06 W07",
		rule.BlocksAPI:    "E13 E16 K02 K07 K10 M13 P01 P02 P03 R01 T28 T29 T30",
		rule.FromSample:   "W01 W02 W03 W05",
		rule.FromUsedType: "K03 T27",
		rule.FollowsFile:  "D05 E15 M03 M09 R07 S10",
		rule.AboutOneof:   "O01 O02 O03 O04 O05 O06 O07 O08 O09 O10 O11 O12",
		rule.AboutNaming:  "A01 A02 A03 A04 A05",
	}
	for _, trait := range slices.Sorted(maps.Keys(want)) {
		var got []string
		for _, r := range append(rule.All(), rule.Naming()...) {
			if r.ID.Has(trait) {
				got = append(got, r.Code)
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want[trait] {
			t.Errorf("trait %d: %v, want %s", trait, got, want[trait])
		}
	}
}
