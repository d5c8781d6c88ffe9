package rest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// route is one REST path and method.
type route struct {
	verb, path string // path without the custom verb
	custom     string // what follows the last segment after a colon; empty for none
	procedure  string
	input      protoreflect.MessageType
	variables  []protoreflect.FieldDescriptor // of the path, named as there
	body       bool                           // else the query holds the request
	maxBody    int64                          // in bytes
	outcome    outcome
	handler    http.Handler
}

// outcome is the status code of a success, and of one that was a repetition.
type outcome struct{ Success, Replay int }

// The status codes of success by method, where they are not 200: 201 for what is created,
// 204 for answers without content. The OpenAPI document is completed from the same file.
//
//go:embed status.json
var statusTable []byte

func outcomes() (map[protoreflect.FullName]outcome, error) {
	var table map[protoreflect.FullName]outcome
	if err := json.Unmarshal(statusTable, &table); err != nil {
		return nil, fmt.Errorf("rest: table of status codes: %w", err)
	}
	return table, nil
}

// routesOf lists the routes of services: their annotated methods, and the further
// bindings of those.
func routesOf(services []string) ([]*route, error) {
	table, err := outcomes()
	if err != nil {
		return nil, err
	}
	var all []*route
	for _, name := range services {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			return nil, fmt.Errorf("rest: service %s: %w", name, err)
		}
		service, ok := d.(protoreflect.ServiceDescriptor)
		if !ok {
			return nil, fmt.Errorf("rest: %s is not a service", name)
		}
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			rule, ok := ruleOf(method)
			if !ok {
				continue
			}
			for _, binding := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
				r, err := newRoute(method, binding)
				if err != nil {
					return nil, fmt.Errorf("rest: %s: %w", method.FullName(), err)
				}
				r.outcome = outcome{http.StatusOK, http.StatusOK}
				if o, ok := table[method.FullName()]; ok {
					r.outcome = o
				}
				all = append(all, r)
			}
		}
	}
	return all, nil
}

func ruleOf(method protoreflect.MethodDescriptor) (*annotations.HttpRule, bool) {
	rule, ok := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
	return rule, ok && rule != nil
}

// customVerb is a verb behind a last segment that is a variable.
var customVerb = regexp.MustCompile(`^(.*/\{[a-z0-9_]+\}):([a-z]+)$`)

var variable = regexp.MustCompile(`^\{([a-z0-9_]+)\}$`)

func newRoute(method protoreflect.MethodDescriptor, rule *annotations.HttpRule) (*route, error) {
	r := &route{procedure: "/" + string(method.Parent().FullName()) + "/" + string(method.Name())}
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		r.verb, r.path = http.MethodGet, p.Get
	case *annotations.HttpRule_Put:
		r.verb, r.path = http.MethodPut, p.Put
	case *annotations.HttpRule_Post:
		r.verb, r.path = http.MethodPost, p.Post
	case *annotations.HttpRule_Delete:
		r.verb, r.path = http.MethodDelete, p.Delete
	case *annotations.HttpRule_Patch:
		r.verb, r.path = http.MethodPatch, p.Patch
	default:
		return nil, fmt.Errorf("pattern %T is not supported", p)
	}
	safe := false
	if options, ok := method.Options().(*descriptorpb.MethodOptions); ok {
		safe = options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	}
	switch {
	case method.IsStreamingClient() || method.IsStreamingServer():
		return nil, fmt.Errorf("streams have no REST path")
	case rule.GetBody() != "" && rule.GetBody() != "*", rule.GetResponseBody() != "":
		return nil, fmt.Errorf("a body that is a field is not supported")
	case safe != (r.verb == http.MethodGet):
		return nil, fmt.Errorf("GET is for methods without side effects, and they are for GET")
	}
	r.body = rule.GetBody() == "*"
	if m := customVerb.FindStringSubmatch(r.path); m != nil {
		r.path, r.custom = m[1], m[2]
	}
	for segment := range strings.SplitSeq(r.path, "/") {
		if !strings.ContainsAny(segment, "{}*:") {
			continue
		}
		name := variable.FindStringSubmatch(segment)
		if name == nil {
			return nil, fmt.Errorf("path segment %q is not supported", segment)
		}
		field := method.Input().Fields().ByName(protoreflect.Name(name[1]))
		if field == nil || field.Kind() != protoreflect.StringKind || field.IsList() {
			return nil, fmt.Errorf("path variable %s is not a string of the request", name[1])
		}
		r.variables = append(r.variables, field)
	}
	input, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return nil, fmt.Errorf("find request: %w", err)
	}
	r.input = input
	return r, nil
}
