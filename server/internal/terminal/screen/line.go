package screen

import (
	"slices"
	"strings"
	"unicode"

	tea "charm.land/bubbletea/v2"
)

// maxLine is how much fits into a message, in bytes.
const maxLine = 16 << 10

// line is a line that is being written.
type line struct {
	text []rune
	at   int // where the cursor is
}

// take returns the line and begins another one.
func (l *line) take() string {
	s := string(l.text)
	*l = line{}
	return s
}

// insert puts text where the cursor is, without what would move it elsewhere.
func (l *line) insert(s string) {
	if len(string(l.text))+len(s) > maxLine {
		return
	}
	add := []rune(printable(strings.ReplaceAll(s, "\n", " ")))
	l.text = slices.Insert(l.text, l.at, add...)
	l.at += len(add)
}

func (l *line) key(k tea.KeyPressMsg) {
	switch k.String() {
	case "left", "ctrl+b":
		l.at = max(l.at-1, 0)
	case "right", "ctrl+f":
		l.at = min(l.at+1, len(l.text))
	case "home", "ctrl+a":
		l.at = 0
	case "end", "ctrl+e":
		l.at = len(l.text)
	case "backspace", "ctrl+h":
		l.remove(l.at-1, l.at)
	case "delete", "ctrl+d":
		l.remove(l.at, l.at+1)
	case "ctrl+u":
		l.remove(0, l.at)
	case "ctrl+k":
		l.remove(l.at, len(l.text))
	case "ctrl+w":
		from := l.at
		for from > 0 && l.text[from-1] == ' ' {
			from--
		}
		for from > 0 && l.text[from-1] != ' ' {
			from--
		}
		l.remove(from, l.at)
	default:
		l.insert(k.Text)
	}
}

func (l *line) remove(from, to int) {
	if from < 0 || to > len(l.text) {
		return
	}
	l.text = slices.Delete(l.text, from, to)
	l.at = from
}

// printable makes text of others fit for a terminal: a character that is not printed
// becomes a dot.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '·'
	}, s)
}
