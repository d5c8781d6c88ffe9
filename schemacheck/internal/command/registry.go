package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/gate"
	"github.com/parley-chat/parley/schemacheck/internal/causes"
	"github.com/parley-chat/parley/schemacheck/internal/load"
	"github.com/parley-chat/parley/schemacheck/internal/registryclient"
	"github.com/parley-chat/parley/schemacheck/internal/report"
)

func (s *settings) client() (*registryclient.Client, error) {
	if s.registry == "" {
		return nil, errors.New("which registry? give --registry URL or set SCHEMA_REGISTRY_URL")
	}
	return registryclient.New(s.registry)
}

// checkRegistry compares each event of head with the versions that its subject has.
func checkRegistry(ctx context.Context, s *settings, e Env) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	v, err := s.forRegistry(ctx, e)
	if err != nil {
		return err
	}
	r, err := v.compareRegistered(ctx, c, e)
	if err != nil {
		return err
	}
	return finish(r, s.format, e)
}

// forRegistry reads head; a head without events is refused.
func (s *settings) forRegistry(ctx context.Context, e Env) (*verdict, error) {
	if err := s.configure(ctx, e); err != nil {
		return nil, err
	}
	s.scope = "event"
	o, err := s.options()
	if err != nil {
		return nil, err
	}
	v := &verdict{settings: s, o: o}
	if v.head, err = s.loadHead(ctx, e); err != nil {
		return nil, err
	}
	if v.o.Events, err = s.eventPatterns(nil, v.head); err != nil {
		return nil, err
	}
	if len(v.subjects()) == 0 {
		return nil, v.nothing()
	}
	return v, nil
}

func (v *verdict) subjects() []registryclient.Subject {
	return registryclient.Subjects(v.head.Files, v.o.Events...)
}

func (v *verdict) compareRegistered(ctx context.Context, c *registryclient.Client, e Env) (*report.Report, error) {
	r := v.report(v.head)
	r.Base, r.Policy, r.Scope = []string{"the registry"}, v.o.Policy.String(), "event"
	r.Notes = append(r.Notes, v.head.Notes...)
	r.Judged = v.judged(schema.New(v.head.Files, v.o.Events...), nil)
	for _, subject := range v.subjects() {
		versions, err := c.Versions(ctx, subject)
		if err != nil {
			return nil, err
		}
		if len(versions) == 0 {
			r.Notes = append(r.Notes, subject.Name+" is new to the registry")
			continue
		}
		history := make([][]protoreflect.FileDescriptor, len(versions))
		for i, v := range versions {
			history[i] = []protoreflect.FileDescriptor{v.File}
		}
		is := []protoreflect.FileDescriptor{subject.File}
		n, at := gate.InMemory(history)
		for one, err := range gate.CompareAll(ctx, n, at, is, v.o) {
			if err != nil {
				return nil, err
			}
			version := versions[one.Version]
			base := &load.Schema{Name: fmt.Sprintf("%s version %d", version.Subject, version.Version)}
			was, head := schema.New(history[one.Version], v.o.Events...), schema.New(is, v.o.Events...)
			r.Add(v.side(base, was, head), causes.Group(one.Findings, was, head))
		}
	}
	v.waive(r, e.now())
	return r, nil
}

// registry compares with, registers at, or verifies a schema registry.
func registry(ctx context.Context, args []string, e Env) error {
	verb := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	verbs := map[string]func(context.Context, *verdict, *registryclient.Client, Env) error{
		"check": registryCheck, "register": registryRegister, "verify": registryVerify,
	}
	run, ok := verbs[verb]
	if !ok {
		return errors.New("say what to do with the registry: check, register or verify")
	}
	s := settings{policy: "FULL", scope: "event"}
	if err := s.parse(e, "registry", args, "registry", "head", "policy", "format", "strict", "exclude", "events",
		"config"); err != nil {
		return err
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	v, err := s.forRegistry(ctx, e)
	if err != nil {
		return err
	}
	return run(ctx, v, c, e)
}

// registryCheck says whether head's events may be registered: by our rules, by the
// registry's own, and whether its levels make it refuse what ours would.
func registryCheck(ctx context.Context, v *verdict, c *registryclient.Client, e Env) error {
	r, err := v.compareRegistered(ctx, c, e)
	if err != nil {
		return err
	}
	for _, subject := range v.subjects() {
		ok, messages, err := c.Compatible(ctx, subject, v.head.Text)
		if err != nil {
			return err
		}
		if !ok {
			r.Problems = append(r.Problems,
				strings.TrimSpace(subject.Name+": the registry would refuse it. "+strings.Join(messages, " ")))
		}
		if err := levelOf(ctx, c, subject, r); err != nil {
			return err
		}
	}
	return finish(r, v.format, e)
}

func levelOf(ctx context.Context, c *registryclient.Client, s registryclient.Subject, r *report.Report) error {
	level, err := c.Level(ctx, s.Name)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(level, "FULL") {
		r.Problems = append(r.Problems,
			fmt.Sprintf("%s: its level is %s, not FULL or FULL_TRANSITIVE: the registry would take what breaks consumers",
				s.Name, level))
	}
	return nil
}

// registryRegister registers head's events, unless they may not follow what is there.
func registryRegister(ctx context.Context, v *verdict, c *registryclient.Client, e Env) error {
	r, err := v.compareRegistered(ctx, c, e)
	if err != nil {
		return err
	}
	if r.Finish(); !r.Clean() {
		return finish(r, v.format, e)
	}
	for _, subject := range v.subjects() {
		id, version, err := c.Register(ctx, subject, v.head.Text)
		if err != nil {
			return err
		}
		r.Notes = append(r.Notes, fmt.Sprintf("%s is version %d with id %d", subject.Name, version, id))
	}
	return finish(r, v.format, e)
}

// registryVerify says whether the registry has exactly head's events, at levels
// that keep them compatible.
func registryVerify(ctx context.Context, v *verdict, c *registryclient.Client, e Env) error {
	r := v.report(v.head)
	r.Base = []string{"the registry"}
	for _, subject := range v.subjects() {
		id, version, err := c.Registered(ctx, subject, v.head.Text)
		if err != nil {
			return err
		}
		if version == 0 {
			r.Problems = append(r.Problems,
				subject.Name+": the registry does not have this schema; schemacheck registry register adds it")
		} else {
			r.Notes = append(r.Notes, fmt.Sprintf("%s is version %d with id %d", subject.Name, version, id))
		}
		if err := levelOf(ctx, c, subject, r); err != nil {
			return err
		}
	}
	return finish(r, v.format, e)
}
