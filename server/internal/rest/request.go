package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/internal/jsonbody"
)

// checkContent refuses bodies that are not plain JSON.
func checkContent(h http.Header) *fault {
	unsupported := func(text string) *fault {
		return &fault{status: http.StatusUnsupportedMediaType, code: connect.CodeInvalidArgument,
			reason: "UNSUPPORTED_MEDIA_TYPE", text: text}
	}
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return unsupported("bodies are taken without Content-Encoding")
	}
	given := h.Get("Content-Type")
	if given == "" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || kind != "application/json" ||
		(params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8")) {
		return unsupported("bodies are taken as Content-Type: application/json")
	}
	return nil
}

// decode makes the RPC's request from the body or the query, and the path.
func (rt *route) decode(w http.ResponseWriter, r *http.Request) (proto.Message, *fault) {
	m := rt.input.New()
	var f *fault
	if rt.body {
		f = decodeBody(w, r, m, rt.maxBody)
	} else {
		f = decodeQuery(w, r, m)
	}
	if f != nil {
		return nil, f
	}
	for _, field := range rt.variables {
		name, value := string(field.Name()), r.PathValue(string(field.Name()))
		if !utf8.ValidString(value) {
			return nil, invalid(name, "is not UTF-8")
		}
		if have := m.Get(field).String(); have != "" && have != value {
			return nil, invalid(name, "differs from the path")
		}
		m.Set(field, protoreflect.ValueOfString(value))
	}
	return m.Interface(), nil
}

// decodeBody fills a message from JSON, as the RPCs' own codec does: unknown
// fields are ignored, or refused in settings. No body is an empty message.
func decodeBody(w http.ResponseWriter, r *http.Request, m protoreflect.Message, limit int64) *fault {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &fault{status: http.StatusRequestEntityTooLarge, code: connect.CodeResourceExhausted,
			reason: "REQUEST_TOO_LARGE", text: fmt.Sprintf("the body is larger than %d KiB", limit>>10)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &fault{status: http.StatusRequestTimeout, code: connect.CodeDeadlineExceeded, reason: "DEADLINE_EXCEEDED",
			text: "the body took too long"}
	case err != nil:
		return invalid("body", "cannot be read")
	case len(bytes.TrimSpace(b)) == 0:
		return nil
	}
	if err := jsonbody.Unmarshal(b, m.Interface()); err != nil {
		return invalid("body", plain(err))
	}
	return nil
}

// decodeQuery fills a message from the query's parameters, by either name of a
// field, and with dots of a field in a field. Parameters that are no field are ignored,
// as unknown fields are.
func decodeQuery(w http.ResponseWriter, r *http.Request, m protoreflect.Message) *fault {
	if n, _ := io.ReadFull(http.MaxBytesReader(w, r.Body, 1), make([]byte, 1)); n > 0 {
		return invalid("body", "this request has none; its fields are parameters of the query")
	}
	params, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("query", "is not well-formed")
	}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(params)) { // sorted: the same query fails alike
		path := pathOf(m.Descriptor(), name)
		if path == nil {
			continue
		}
		values := params[name]
		field, full := path[len(path)-1], path.name()
		if seen[full] || (len(values) > 1 && !field.IsList()) {
			return invalid(full, "is given twice")
		}
		seen[full] = true
		if o := field.ContainingOneof(); o != nil {
			choice := path[:len(path)-1].name() + "|" + string(o.Name())
			if seen[choice] {
				return invalid(full, "excludes another one that is given")
			}
			seen[choice] = true
		}
		one := m.New()
		if err := decodeParameter(path, values, one.Interface()); err != nil {
			return invalid(full, plain(err))
		}
		proto.Merge(m.Interface(), one.Interface())
	}
	return nil
}

// fieldPath is a field, behind the fields that it is in.
type fieldPath []protoreflect.FieldDescriptor

// pathOf returns the field that a parameter names; nil if there is none.
func pathOf(d protoreflect.MessageDescriptor, name string) (path fieldPath) {
	for part := range strings.SplitSeq(name, ".") {
		if d == nil {
			return nil
		}
		field := d.Fields().ByJSONName(part)
		if field == nil {
			field = d.Fields().ByTextName(part)
		}
		if field == nil {
			return nil
		}
		path = append(path, field)
		if d = nil; !field.IsList() && !field.IsMap() {
			d = field.Message()
		}
	}
	return path
}

func (p fieldPath) name() string {
	names := make([]string, len(p))
	for i, field := range p {
		names[i] = field.JSONName()
	}
	return strings.Join(names, ".")
}

// decodeParameter sets one field. The JSON of a scalar is its text in quotes, but
// that of a bool is not.
func decodeParameter(path fieldPath, values []string, m proto.Message) error {
	field := path[len(path)-1]
	texts := make([]json.RawMessage, 0, len(values))
	for _, v := range values {
		if !utf8.ValidString(v) {
			return errors.New("is not UTF-8")
		}
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if field.Kind() == protoreflect.BoolKind {
			if v != "true" && v != "false" {
				return errors.New("must be true or false")
			}
			text = []byte(v)
		}
		texts = append(texts, text)
	}
	var value any = texts
	if !field.IsList() {
		value = texts[0]
	}
	for _, of := range slices.Backward(path) {
		value = map[string]any{of.JSONName(): value}
	}
	object, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return jsonbody.Unmarshal(object, m)
}

// plain is the text of an error of protojson, which varies its spaces on purpose,
// and quotes what it was given.
func plain(err error) string {
	text := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "\ufffd"), "\u00a0", " ")
	if _, after, ok := strings.Cut(text, "proto: "); ok {
		text = after
	}
	const most = 256
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
