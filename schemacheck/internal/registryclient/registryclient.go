// Package registryclient speaks with a schema registry that has Confluent's HTTP API.
//
// It owns what a schema is called there: the subject of an event, "<topic>-<full
// message name>" or the full message name alone, and the subject of an imported
// file, its import path. It judges nothing.
//
// Concurrency: a Client is safe for use by many goroutines.
package registryclient

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/compile"
)

// Limits of one call and of one schema.
const (
	timeout       = 30 * time.Second
	maxReferences = 256
)

// Client is a connection to a registry.
type Client struct{ sr *sr.Client }

// New makes a Client. The URL may hold a user and a password.
func New(address string) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the registry's address must be a URL, such as http://localhost:8081")
	}
	opts := []sr.ClientOpt{sr.UserAgent("schemacheck"), sr.HTTPClient(&http.Client{Timeout: timeout})}
	if u.User != nil {
		password, _ := u.User.Password()
		opts = append(opts, sr.BasicAuth(u.User.Username(), password))
		u.User = nil
	}
	c, err := sr.NewClient(append(opts, sr.URLs(strings.TrimSuffix(u.String(), "/")))...)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return &Client{sr: c}, nil
}

// Subject is a schema that a registry should hold: an event's file.
type Subject struct {
	Name    string
	Message protoreflect.FullName
	File    protoreflect.FileDescriptor
}

// Subjects returns the subjects of a schema's events, ordered by name. Events that
// declare a topic are called after it; without any, roots go by their own name. Patterns
// name files of events beside those that declare one.
func Subjects(files []protoreflect.FileDescriptor, events ...string) []Subject {
	set := schema.New(files, events...)
	var list []Subject
	for _, m := range set.Roots {
		s := Subject{Name: string(m.FullName()), Message: m.FullName(), File: m.ParentFile()}
		if e, ok := set.Events[m.FullName()]; ok && e.Text("topic") != "" {
			s.Name = e.Text("topic") + "-" + s.Name
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Subject) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Version is a registered version of a subject.
type Version struct {
	Subject string
	Version int
	ID      int
	File    protoreflect.FileDescriptor
}

// Versions returns the versions of a subject, oldest first, none if the registry
// does not have it. Their files get the path of the subject's own file.
func (c *Client) Versions(ctx context.Context, s Subject) ([]Version, error) {
	numbers, err := c.sr.SubjectVersions(ctx, s.Name)
	if code(err) == sr.ErrSubjectNotFound.Code {
		return nil, nil
	}
	if err != nil {
		return nil, fail("read "+s.Name, err)
	}
	var list []Version
	for _, n := range numbers {
		got, err := c.sr.SchemaByVersion(ctx, s.Name, n)
		if err != nil {
			return nil, fail(fmt.Sprintf("read %s version %d", s.Name, n), err)
		}
		f, err := c.file(ctx, got.Schema, s.File.Path())
		if err != nil {
			return nil, fmt.Errorf("%s version %d: %w", s.Name, n, err)
		}
		list = append(list, Version{Subject: s.Name, Version: n, ID: got.ID, File: f})
	}
	return list, nil
}

// file makes a descriptor of a registered schema and all that it refers to.
func (c *Client) file(ctx context.Context, s sr.Schema, path string) (protoreflect.FileDescriptor, error) {
	if s.Type != sr.TypeProtobuf {
		return nil, fmt.Errorf("is %s, not PROTOBUF", s.Type)
	}
	text := map[string]string{path: s.Schema}
	queue := s.References
	for len(queue) > 0 {
		ref := queue[0]
		queue = queue[1:]
		if _, have := text[ref.Name]; have {
			continue
		}
		if len(text) > maxReferences {
			return nil, fmt.Errorf("refers to more than %d schemas", maxReferences)
		}
		got, err := c.sr.SchemaByVersion(ctx, ref.Subject, ref.Version)
		if err != nil {
			return nil, fail("read its reference "+ref.Subject, err)
		}
		text[ref.Name] = got.Schema.Schema
		queue = append(queue, got.References...)
	}
	files, mistakes := compile.Files(ctx, text, []string{path})
	if len(mistakes) > 0 {
		return nil, fmt.Errorf("does not compile: %s:%d: %s", mistakes[0].File, mistakes[0].Line, mistakes[0].Text)
	}
	return files[0], nil
}

// Level returns the compatibility level that holds for a subject.
func (c *Client) Level(ctx context.Context, subject string) (string, error) {
	r := c.sr.Compatibility(sr.WithParams(ctx, sr.DefaultToGlobal), subject)
	if len(r) != 1 || r[0].Err != nil {
		return "", fail("read the level of "+subject, first(r))
	}
	return r[0].Level.String(), nil
}

func first(r []sr.CompatibilityResult) error {
	if len(r) == 0 {
		return errors.New("no answer")
	}
	return r[0].Err
}

// Compatible asks the registry whether it would take a schema as a subject's next
// version, and why not. A subject that it does not have takes anything.
func (c *Client) Compatible(ctx context.Context, s Subject, text map[string]string) (bool, []string, error) {
	one, missing, err := c.schema(ctx, s.File, text, false)
	if err != nil {
		return false, nil, err
	}
	if missing != "" { // an import that is new: nothing to ask before it is registered
		return true, nil, nil
	}
	r, err := c.sr.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), s.Name, -1, one)
	if e := code(err); e == sr.ErrSubjectNotFound.Code || e == sr.ErrVersionNotFound.Code {
		return true, nil, nil
	}
	if err != nil {
		return false, nil, fail("ask about "+s.Name, err)
	}
	return r.Is, r.Messages, nil
}

// Registered returns id and version under which the registry has exactly this
// schema, 0 if it has not.
func (c *Client) Registered(ctx context.Context, s Subject, text map[string]string) (id, version int, err error) {
	one, missing, err := c.schema(ctx, s.File, text, false)
	if err != nil || missing != "" {
		return 0, 0, err
	}
	got, err := c.sr.LookupSchema(ctx, s.Name, one)
	if e := code(err); e == sr.ErrSubjectNotFound.Code || e == sr.ErrSchemaNotFound.Code {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fail("look up "+s.Name, err)
	}
	return got.ID, got.Version, nil
}

// Register makes sure that a subject has the schema, its imports first, and that
// the subject's level is FULL or stricter. It returns id and version.
func (c *Client) Register(ctx context.Context, s Subject, text map[string]string) (id, version int, err error) {
	level, err := c.Level(ctx, s.Name)
	if err != nil {
		return 0, 0, err
	}
	if !strings.HasPrefix(level, "FULL") {
		if err := c.setLevel(ctx, s.Name, sr.CompatFull); err != nil {
			return 0, 0, err
		}
	}
	one, _, err := c.schema(ctx, s.File, text, true)
	if err != nil {
		return 0, 0, err
	}
	got, err := c.sr.CreateSchema(ctx, s.Name, one)
	if err != nil {
		return 0, 0, fail("register "+s.Name, err)
	}
	return got.ID, got.Version, nil
}

func (c *Client) setLevel(ctx context.Context, subject string, level sr.CompatibilityLevel) error {
	r := c.sr.SetCompatibility(ctx, sr.SetCompatibility{Level: level}, subject)
	if err := first(r); err != nil {
		return fail("set the level of "+subject, err)
	}
	return nil
}

// schema makes what is sent to the registry for a file. With register, imported
// files are registered at level NONE: they are judged through the events that use
// them. Without, the first import that the registry does not have is named.
func (c *Client) schema(
	ctx context.Context, f protoreflect.FileDescriptor, text map[string]string, register bool,
) (sr.Schema, string, error) {
	s := sr.Schema{Type: sr.TypeProtobuf, Schema: text[f.Path()]}
	if s.Schema == "" {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(protodesc.ToFileDescriptorProto(f))
		if err != nil {
			return s, "", fmt.Errorf("describe %s: %w", f.Path(), err)
		}
		s.Schema = base64.StdEncoding.EncodeToString(b)
	}
	for i := range f.Imports().Len() {
		dep := f.Imports().Get(i).FileDescriptor
		if strings.HasPrefix(dep.Path(), "google/protobuf/") {
			continue // every registry has them
		}
		one, missing, err := c.schema(ctx, dep, text, register)
		if err != nil || missing != "" {
			return s, missing, err
		}
		var got sr.SubjectSchema
		if register {
			if err := c.setLevel(ctx, dep.Path(), sr.CompatNone); err != nil {
				return s, "", err
			}
			if got, err = c.sr.CreateSchema(ctx, dep.Path(), one); err != nil {
				return s, "", fail("register "+dep.Path(), err)
			}
		} else if got, err = c.sr.LookupSchema(ctx, dep.Path(), one); err != nil {
			if e := code(err); e == sr.ErrSubjectNotFound.Code || e == sr.ErrSchemaNotFound.Code {
				return s, dep.Path(), nil
			}
			return s, "", fail("look up "+dep.Path(), err)
		}
		s.References = append(s.References, sr.SchemaReference{Name: dep.Path(), Subject: dep.Path(), Version: got.Version})
	}
	return s, "", nil
}

// code returns the registry's error code, 0 for other errors.
func code(err error) int {
	var e *sr.ResponseError
	if errors.As(err, &e) {
		return e.ErrorCode
	}
	return 0
}

// fail names what was tried, in a line.
func fail(what string, err error) error {
	var e *sr.ResponseError
	if errors.As(err, &e) && e.Message != "" {
		line, _, _ := strings.Cut(e.Message, "\n")
		return fmt.Errorf("registry: %s: %s (%d)", what, line, e.ErrorCode)
	}
	return fmt.Errorf("registry: %s: %w", what, err)
}
