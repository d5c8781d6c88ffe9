package docsite

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode"
)

// Limits of a search.
const (
	maxWords  = 8  // of a query; others are not looked for
	maxHits   = 20 // of an answer
	maxSpread = 64 // words of the documents for one beginning of a word
	minPrefix = 2  // bytes of a beginning
	before    = 60 // bytes of text that are shown around what was found
	after     = 160
)

// Weights of the places of a word, against once in the text.
const (
	inHeading = 6
	inTitle   = 3
	beginning = 0.4 // of a word that only begins as the one that is looked for
)

// section is a part of a page that can be found.
type section struct {
	url, page, heading, text string
}

// hit is a section that was found, with where.
type hit struct {
	URL, Page, Heading    string
	Before, Match, Behind string

	score float64
	words int // of the query
}

// posting says how much a section is about a word.
type posting struct {
	section int
	weight  float64
}

// index finds sections by words. It never changes.
type index struct {
	sections []section
	words    []string // sorted
	postings map[string][]posting
}

func newIndex(sections []section) *index {
	x := &index{sections: sections, postings: map[string][]posting{}}
	for i, s := range sections {
		weights := map[string]float64{}
		times := map[string]int{}
		for _, w := range parts(s.text) {
			times[w]++
		}
		for w, n := range times {
			weights[w] = 1 + math.Log(float64(n))
		}
		for _, w := range parts(s.page) {
			weights[w] += inTitle
		}
		for _, w := range parts(s.heading) {
			weights[w] += inHeading
		}
		for w, weight := range weights {
			x.postings[w] = append(x.postings[w], posting{i, weight})
		}
	}
	for w := range x.postings {
		x.words = append(x.words, w)
	}
	slices.Sort(x.words)
	return x
}

// search returns the sections with most words of a query, the best first. A word counts by
// how rare it is.
func (x *index) search(query string) []hit {
	wanted := wordsOf(query)
	if len(wanted) > maxWords {
		wanted = wanted[:maxWords]
	}
	found := map[int]*hit{}
	for _, word := range wanted {
		for i, score := range x.scores(word) {
			if found[i] == nil {
				s := x.sections[i]
				found[i] = &hit{URL: s.url, Page: s.page, Heading: s.heading}
			}
			found[i].score += score
			found[i].words++
		}
	}
	highest := 0
	for _, h := range found {
		highest = max(highest, h.words)
	}
	var hits []hit
	for i, h := range found {
		if h.words == highest {
			h.Before, h.Match, h.Behind = excerpt(x.sections[i].text, wanted)
			hits = append(hits, *h)
		}
	}
	slices.SortFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.URL, b.URL))
	})
	return hits[:min(len(hits), maxHits)]
}

// scores are the sections that have a word, or one that begins with it.
func (x *index) scores(word string) map[int]float64 {
	out := map[int]float64{}
	first, _ := slices.BinarySearch(x.words, word)
	for i := first; i < len(x.words) && i < first+maxSpread && strings.HasPrefix(x.words[i], word); i++ {
		share := beginning
		if x.words[i] == word {
			share = 1
		} else if len(word) < minPrefix {
			break
		}
		list := x.postings[x.words[i]]
		rare := math.Log(1 + float64(len(x.sections))/float64(len(list)))
		for _, p := range list {
			out[p.section] = max(out[p.section], share*rare*p.weight)
		}
	}
	return out
}

// wordsOf are the words of a text in small letters; a name with underscores is one.
func wordsOf(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

// parts are the words of a text, and those that its names are made of.
func parts(text string) []string {
	words := wordsOf(text)
	for _, w := range words {
		if strings.Contains(w, "_") {
			words = append(words, strings.FieldsFunc(w, func(r rune) bool { return r == '_' })...)
		}
	}
	return words
}

// excerpt is the text around the place that has most of some words; its beginning if it has none.
func excerpt(text string, words []string) (front, match, behind string) {
	at, length, limit := -1, 0, 0
	if small := strings.ToLower(text); len(small) == len(text) { // or places differ
		for _, w := range words {
			i := strings.Index(small, w)
			if i < 0 {
				continue
			}
			near, n := small[i:min(i+after, len(small))], 0
			for _, other := range words {
				if strings.Contains(near, other) {
					n++
				}
			}
			if n > limit {
				at, length, limit = i, len(w), n
			}
		}
	}
	if at < 0 {
		return "", "", until(text, before+after)
	}
	front = text[:at]
	if cut := at - before; cut > 0 {
		front = strings.ToValidUTF8(text[cut:at], "")
		if i := strings.IndexByte(front, ' '); i >= 0 {
			front = front[i+1:]
		}
		front = "…" + front
	}
	return front, text[at : at+length], until(text[at+length:], after)
}

// until is the beginning of a text in whole words, with a sign that there is more.
func until(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	text = strings.ToValidUTF8(text[:limit], "")
	if i := strings.LastIndexByte(text, ' '); i >= 0 {
		text = text[:i]
	}
	return text + "…"
}
