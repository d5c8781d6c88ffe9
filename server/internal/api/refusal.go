package api

import (
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// Refusal is what a client sees of an error.
type Refusal struct {
	Code   connect.Code
	Reason string // stable name
	Text   string
	Retry  time.Duration // when to retry; 0: a retry does not help
}

// Mapping is what a client sees of a sentinel.
type Mapping struct {
	Is     error
	Code   connect.Code
	Reason string // stable name
	// Text is what the client reads. Empty: the error's own, from the sentinel on;
	// only for sentinels that explain what the caller sent.
	Text  string
	Retry time.Duration // when to retry; 0: a retry does not help
}

// Refusals is a service's table of errors, searched from the top.
type Refusals []Mapping

// Explain returns what a client sees of an error, nil if the table does not have it.
func (r Refusals) Explain(err error) *Refusal {
	m := r.find(err)
	if m == nil {
		return nil
	}
	return &Refusal{Code: m.Code, Reason: m.Reason, Text: m.text(err), Retry: m.Retry}
}

// All returns the refusals, for the documents. A text is empty where it depends on the request.
func (r Refusals) All() (all []Refusal) {
	for _, m := range r {
		if m.Code != connect.CodeInternal { // of which clients see nothing
			all = append(all, Refusal{Code: m.Code, Reason: m.Reason, Text: m.Text, Retry: m.Retry})
		}
	}
	return all
}

// find returns the first row of an error that clients see.
func (r Refusals) find(err error) *Mapping {
	for i := range r {
		if r[i].Code != connect.CodeInternal && errors.Is(err, r[i].Is) {
			return &r[i]
		}
	}
	return nil
}

func (m *Mapping) text(err error) string {
	if m.Text != "" {
		return m.Text
	}
	return ownText(err, m.Is)
}

// ownText returns an error's text from the sentinel on, without the package's
// name.
func ownText(err, sentinel error) string {
	text := err.Error()
	if i := strings.Index(text, sentinel.Error()); i >= 0 {
		text = text[i:]
	}
	_, after, ok := strings.Cut(text, ": ")
	if !ok {
		return text
	}
	return after
}
