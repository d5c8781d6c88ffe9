package sample

import (
	"regexp/syntax"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// patterns returns texts that match the patterns of rules: the shortest, and with
// each repetition once, twice and as often as allowed.
func patterns(rules []protoreflect.Message) []string {
	var list []string
	for _, r := range rules {
		f := r.Descriptor().Fields().ByName("pattern")
		if f == nil || !r.Has(f) {
			continue
		}
		re, err := syntax.Parse(r.Get(f).String(), syntax.Perl)
		if err != nil {
			continue
		}
		for _, times := range []int{1, 0, 2, maxRepeat} {
			var b strings.Builder
			match(&b, re, times)
			list = append(list, b.String())
		}
	}
	return list
}

const maxRepeat = 64

// match appends a text that the expression matches.
func match(b *strings.Builder, re *syntax.Regexp, times int) {
	if b.Len() > maxText {
		return
	}
	repeat := func(lowest, highest int) {
		n := max(times, lowest)
		if highest >= 0 {
			n = min(n, highest)
		}
		for range n {
			match(b, re.Sub[0], times)
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		if len(re.Rune) > 0 {
			b.WriteRune(readable(re.Rune))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte('a')
	case syntax.OpCapture:
		match(b, re.Sub[0], times)
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			match(b, sub, times)
		}
	case syntax.OpAlternate:
		match(b, re.Sub[times%len(re.Sub)], times)
	case syntax.OpStar:
		repeat(0, -1)
	case syntax.OpPlus:
		repeat(1, -1)
	case syntax.OpQuest:
		repeat(0, 1)
	case syntax.OpRepeat:
		repeat(re.Min, re.Max)
	}
}

// readable returns a letter or digit of a class if it has one, else its first.
func readable(ranges []rune) rune {
	for _, want := range []rune{'a', 'A', '0'} {
		for i := 0; i < len(ranges); i += 2 {
			if ranges[i] <= want && want <= ranges[i+1] {
				return want
			}
		}
	}
	return ranges[0]
}
