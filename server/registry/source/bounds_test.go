package source

import (
	"strings"
	"testing"
)

// Brackets count outside comments and strings, wherever those end.
func TestDeep(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		line int
	}{
		"none":                {"", 0},
		"at the bound":        {strings.Repeat("{", 3) + strings.Repeat("}", 3), 0},
		"beyond it":           {"\n\n{ [ ( <", 3},
		"side by side":        {strings.Repeat("{} ", 50), 0},
		"line comment":        {"// {{{{\n{", 0},
		"its end":             {"// \n{{{{", 2},
		"no end":              {"{{{ // {{{{", 0},
		"comment":             {"/* {{{{ \n */ {{{", 0},
		"after a comment":     {"/* \n\n */ {{{{", 3},
		"comment without end": {"/* {{{{", 0},
		"slash and star":      {"/*/ {{{{ */", 0},
		"string":              {`"{{{{" '{{{{'`, 0},
		"quoted quote":        {`"\"{{{{"`, 0},
		"open string":         {"\"{{{{\n{{{{", 2},
		"quote in the other":  {`"'" {{{{`, 1},
		"last backslash":      {`"\`, 0},
	} {
		if got := lineTooDeep(tt.text, 3); got != tt.line {
			t.Errorf("%s: line %d, want %d", name, got, tt.line)
		}
	}
}

func FuzzDeep(f *testing.F) {
	f.Add("message A { /* */ \"x\" }")
	f.Fuzz(func(t *testing.T, text string) {
		if line := lineTooDeep(text, 3); line < 0 || line > strings.Count(text, "\n")+1 {
			t.Errorf("line %d", line)
		}
	})
}
