package rpc

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// errorDomain is the domain of all reasons.
const errorDomain = "parley"

// Refusal is what a caller sees of an error.
type Refusal struct {
	Code   connect.Code
	Reason string // stable name
	Text   string
	Retry  time.Duration // when to retry; 0: a retry does not help
}

// Mapping is what a caller sees of a sentinel.
type Mapping struct {
	Is     error
	Code   connect.Code
	Reason string // stable name
	// Text is what the caller reads. Empty: the error's own, from the sentinel on;
	// only for sentinels that explain what the caller sent.
	Text  string
	Retry time.Duration // when to retry; 0: a retry does not help
}

// Refusals is a service's table of errors, searched from the top. Rows with the code internal
// name defects of the program: callers see nothing of them.
type Refusals []Mapping

// Find returns the first row of an error that callers see, nil if there is none.
func (r Refusals) Find(err error) *Mapping {
	for i := range r {
		if r[i].Code != connect.CodeInternal && errors.Is(err, r[i].Is) {
			return &r[i]
		}
	}
	return nil
}

// Explain returns what a caller sees of an error, nil if the table does not have it.
func (r Refusals) Explain(err error) *Refusal {
	if m := r.Find(err); m != nil {
		return m.Explain(err)
	}
	return nil
}

// All returns the refusals, for the documents. A text is empty where it depends on the request.
func (r Refusals) All() (all []Refusal) {
	for _, m := range r {
		if m.Code != connect.CodeInternal {
			all = append(all, Refusal{Code: m.Code, Reason: m.Reason, Text: m.Text, Retry: m.Retry})
		}
	}
	return all
}

// Explain returns what a caller sees of an error that the row is for.
func (m *Mapping) Explain(err error) *Refusal {
	text := m.Text
	if text == "" {
		text = m.ownText(err)
	}
	return &Refusal{Code: m.Code, Reason: m.Reason, Text: text, Retry: m.Retry}
}

// ownText returns an error's text from the sentinel on, without the package's name; of an invalid argument
// without the sentinel, too: the code says as much.
func (m *Mapping) ownText(err error) string {
	text := m.Is.Error()
	if _, why, ok := strings.Cut(err.Error(), text+": "); ok {
		if m.Code == connect.CodeInvalidArgument {
			return why
		}
		text += ": " + why
	}
	if _, after, ok := strings.Cut(text, ": "); ok {
		return after
	}
	return text
}

// Error returns the refusal as an RPC answers with it: an ErrorInfo with the reason and the metadata, a
// RetryInfo with a header Retry-After in whole seconds if a retry helps, and further details.
func (r Refusal) Error(metadata map[string]string, details ...proto.Message) *connect.Error {
	out := connect.NewError(r.Code, errors.New(r.Text))
	details = append([]proto.Message{&errdetails.ErrorInfo{Reason: r.Reason, Domain: errorDomain, Metadata: metadata}},
		details...)
	if r.Retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.Retry)})
		out.Meta().Set("Retry-After", strconv.Itoa(int(math.Ceil(r.Retry.Seconds()))))
	}
	for _, m := range details {
		if d, err := connect.NewErrorDetail(m); err == nil { // only fails for messages that cannot be encoded
			out.AddDetail(d)
		}
	}
	return out
}
