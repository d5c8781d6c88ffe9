package compat_test

import (
	"strings"
	"testing"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
)

// KS01, KS02, KS14, KS23: each search event has a schema in a directory of its version. One
// that readers would not understand any more is refused; the same as a new file with a topic
// of its own is not.
func TestSearchEvents(t *testing.T) {
	t.Parallel()
	own := sources(t, "event")
	base, err := fixture.Compile(own)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"search_impression", "search_result_summary", "search_click", "search_dwell",
		"ac_impression", "ac_select"} {
		text := own["parley/search/v1/"+name+".proto"]
		for _, want := range []string{"event_type: \"" + name + "\"", "topic: \"" + name + "_v1\""} {
			if !strings.Contains(text, want) {
				t.Errorf("%s.proto lacks %s", name, want)
			}
		}
	}
	const file = "parley/search/v1/search_click.proto"
	next := strings.NewReplacer("message SearchClick {", "message SearchClickV2 {", "SearchClick:", "SearchClickV2:",
		"SearchClickProto", "SearchClickV2Proto", "search_click_v1", "search_click_v2", `"search_click"`, `"search_click_v2"`,
		"int32 position", "int32 place").Replace(own[file])
	const field = "int32 position = 4 [(buf.validate.field).int32.gte = 0]"
	for _, c := range []struct {
		name   string
		change func(files map[string]string)
		clean  bool
	}{
		{"another type of a field", func(f map[string]string) {
			f[file] = strings.Replace(f[file], field, "string position = 4", 1)
		}, false},
		{"a field less", func(f map[string]string) {
			f[file] = strings.Replace(f[file], field+";", "", 1)
		}, false},
		{"another topic", func(f map[string]string) {
			f[file] = strings.Replace(f[file], "search_click_v1", "search_click_v2", 1)
		}, false},
		{"an optional field more", func(f map[string]string) {
			f[file] = strings.NewReplacer("version: 1", "version: 2", field+";", field+
				";\n  // Device.\n  optional string device = 5 [(buf.validate.field).string.max_len = 64];").Replace(f[file])
		}, true},
		{"a new file and topic", func(f map[string]string) { f["parley/search/v1/search_click_v2.proto"] = next }, true},
	} {
		files := map[string]string{}
		for name, text := range own {
			files[name] = text
		}
		c.change(files)
		head, err := fixture.Compile(files)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		blocked := 0
		var lines []string
		for _, f := range compare(t, base, head, compat.Options{}) {
			if f.Severity == rule.Block {
				blocked++
			}
			lines = append(lines, fixture.Line(f))
		}
		if (blocked == 0) != c.clean {
			t.Errorf("%s: %v", c.name, lines)
		}
	}
}
