package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/gate"
	"github.com/parley-chat/parley/schemacheck/internal/load"
	"github.com/parley-chat/parley/schemacheck/internal/remote"
	"github.com/parley-chat/parley/schemacheck/internal/report"
)

func (s *settings) client() (*remote.Client, error) {
	if s.registry == "" {
		return nil, errors.New("which registry? give --registry URL or set SCHEMA_REGISTRY_URL")
	}
	return remote.New(s.registry)
}

// checkRegistry compares each event of head with the versions that its subject has.
func checkRegistry(ctx context.Context, s *settings, o compat.Options, e Env) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	head, err := s.loadHead(ctx, e)
	if err != nil {
		return err
	}
	r, err := compareRegistered(ctx, s, c, head, o)
	if err != nil {
		return err
	}
	return finish(r, s.format, e)
}

func compareRegistered(ctx context.Context, s *settings, c *remote.Client, head *load.Schema, o compat.Options) (*report.Report, error) {
	o.Scope = compat.Event
	r := s.report(head)
	r.Base, r.Policy, r.Scope = []string{"the registry"}, o.Policy.String(), "event"
	subjects := remote.Subjects(head.Files)
	if len(subjects) == 0 {
		r.Notes = append(r.Notes, "head has no event")
	}
	for _, subject := range subjects {
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
		compared, err := gate.CompareAll(ctx, history, []protoreflect.FileDescriptor{subject.File}, o)
		if err != nil {
			return nil, err
		}
		for _, one := range slices.Backward(compared) {
			v := versions[one.Version]
			r.Add(fmt.Sprintf("%s version %d", v.Subject, v.Version), one.Findings, func(f compat.Finding) string {
				if f.Base {
					return f.File
				}
				return head.Place(f.File)
			})
		}
	}
	return r, nil
}

// registry compares with, registers at, or verifies a schema registry.
func registry(ctx context.Context, args []string, e Env) error {
	verb := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	verbs := map[string]func(context.Context, *settings, *remote.Client, *load.Schema, Env) error{
		"check": registryCheck, "register": registryRegister, "verify": registryVerify,
	}
	run, ok := verbs[verb]
	if !ok {
		return errors.New("say what to do with the registry: check, register or verify")
	}
	s := settings{policy: "FULL", scope: "event"}
	if err := s.parse(e, "registry", args, "registry", "head", "policy", "format", "strict", "exclude"); err != nil {
		return err
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	head, err := s.loadHead(ctx, e)
	if err != nil {
		return err
	}
	return run(ctx, &s, c, head, e)
}

// registryCheck says whether head's events may be registered: by our rules, by the
// registry's own, and whether its levels make it refuse what ours would.
func registryCheck(ctx context.Context, s *settings, c *remote.Client, head *load.Schema, e Env) error {
	o, err := s.options()
	if err != nil {
		return err
	}
	r, err := compareRegistered(ctx, s, c, head, o)
	if err != nil {
		return err
	}
	for _, subject := range remote.Subjects(head.Files) {
		ok, messages, err := c.Compatible(ctx, subject, head.Text)
		if err != nil {
			return err
		}
		if !ok {
			r.Extra = append(r.Extra, strings.TrimSpace(subject.Name+": the registry would refuse it. "+strings.Join(messages, " ")))
		}
		if err := levelOf(ctx, c, subject, r); err != nil {
			return err
		}
	}
	return finish(r, s.format, e)
}

func levelOf(ctx context.Context, c *remote.Client, s remote.Subject, r *report.Report) error {
	level, err := c.Level(ctx, s.Name)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(level, "FULL") {
		r.Extra = append(r.Extra, fmt.Sprintf("%s: its level is %s, not FULL or FULL_TRANSITIVE: the registry would take what breaks consumers", s.Name, level))
	}
	return nil
}

// registryRegister registers head's events, unless they may not follow what is there.
func registryRegister(ctx context.Context, s *settings, c *remote.Client, head *load.Schema, e Env) error {
	o, err := s.options()
	if err != nil {
		return err
	}
	r, err := compareRegistered(ctx, s, c, head, o)
	if err != nil {
		return err
	}
	if r.Finish(); !r.Clean() {
		return finish(r, s.format, e)
	}
	for _, subject := range remote.Subjects(head.Files) {
		id, version, err := c.Register(ctx, subject, head.Text)
		if err != nil {
			return err
		}
		r.Notes = append(r.Notes, fmt.Sprintf("%s is version %d with id %d", subject.Name, version, id))
	}
	return finish(r, s.format, e)
}

// registryVerify says whether the registry has exactly head's events, at levels
// that keep them compatible.
func registryVerify(ctx context.Context, s *settings, c *remote.Client, head *load.Schema, e Env) error {
	r := s.report(head)
	r.Base = []string{"the registry"}
	for _, subject := range remote.Subjects(head.Files) {
		id, version, err := c.Registered(ctx, subject, head.Text)
		if err != nil {
			return err
		}
		if version == 0 {
			r.Extra = append(r.Extra, subject.Name+": the registry does not have this schema; schemacheck registry register adds it")
		} else {
			r.Notes = append(r.Notes, fmt.Sprintf("%s is version %d with id %d", subject.Name, version, id))
		}
		if err := levelOf(ctx, c, subject, r); err != nil {
			return err
		}
	}
	return finish(r, s.format, e)
}
