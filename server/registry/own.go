package registry

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/registry/source"
)

// A Message is a kind of record that a topic carries, the first of its file.
type Message struct {
	Topic string
	Proto proto.Message
}

// Subject is the name that the message's schema is registered under.
func (m Message) Subject() string {
	return m.Topic + "-" + string(m.Proto.ProtoReflect().Descriptor().FullName())
}

// A MissingError says which of Parley's own schemas is not registered.
type MissingError struct{ Subject string }

func (e *MissingError) Error() string { return e.Subject + " is not registered as it is here" }

// Own are the ids of Parley's own schemas.
type Own struct {
	Events   map[string]int // by event type
	Messages []int          // in the order they were asked for
}

// RegisterOwn registers the schemas of all events, and of other messages, each with all
// that its file imports, unless they are registered already.
func (r *Registry) RegisterOwn(ctx context.Context, messages ...Message) (Own, error) {
	return (&owner{r, true, map[string]Version{}}).all(ctx, messages)
}

// FindOwn is RegisterOwn for processes that must not register: it changes nothing and
// fails with *MissingError.
func (r *Registry) FindOwn(ctx context.Context, messages ...Message) (Own, error) {
	return (&owner{r, false, map[string]Version{}}).all(ctx, messages)
}

// Events registers the schemas of all events and returns their ids by event type.
func (r *Registry) Events(ctx context.Context) (map[string]int, error) {
	own, err := r.RegisterOwn(ctx)
	return own.Events, err
}

// EnsureTopic registers the schemas of the events of a declared topic for another topic that
// carries them. Their ids are the same, because the registered texts are. Without register
// it changes nothing and fails with *MissingError.
func (r *Registry) EnsureTopic(ctx context.Context, declared, topic string, register bool) error {
	o := &owner{r, register, map[string]Version{}}
	for _, spec := range event.Specs() {
		if spec.Topic != declared {
			continue
		}
		if _, err := o.message(ctx, Message{topic, event.Prototype(spec.Type)}); err != nil {
			return err
		}
	}
	return nil
}

// An owner registers Parley's own schemas, or finds them in the registry.
type owner struct {
	registry *Registry
	register bool
	files    map[string]Version // that are registered or found, by subject
}

func (o *owner) all(ctx context.Context, messages []Message) (Own, error) {
	own := Own{Events: map[string]int{}}
	for _, spec := range event.Specs() {
		id, err := o.message(ctx, Message{spec.Topic, event.Prototype(spec.Type)})
		if err != nil {
			return Own{}, err
		}
		own.Events[spec.Type] = id
	}
	for _, m := range messages {
		id, err := o.message(ctx, m)
		if err != nil {
			return Own{}, err
		}
		own.Messages = append(own.Messages, id)
	}
	return own, nil
}

func (o *owner) message(ctx context.Context, m Message) (int, error) {
	v, err := o.file(ctx, m.Subject(), m.Proto.ProtoReflect().Descriptor().ParentFile())
	return v.ID, err
}

// file registers or finds a file after its imports, unless that is done. Imported files
// have their path as subject, at level NONE: they are judged through the events that use
// them.
func (o *owner) file(ctx context.Context, subject string, f protoreflect.FileDescriptor) (Version, error) {
	if v, ok := o.files[subject]; ok {
		return v, nil
	}
	var s Schema
	for i := range f.Imports().Len() {
		dep := f.Imports().Get(i).FileDescriptor
		if strings.HasPrefix(dep.Path(), "google/protobuf/") {
			continue // every reader has them
		}
		v, err := o.file(ctx, dep.Path(), dep)
		if err != nil {
			return Version{}, err
		}
		s.References = append(s.References, Reference{Name: dep.Path(), Subject: dep.Path(), Version: v.Version})
	}
	d, err := source.Of(f).Canonical()
	if err != nil {
		return Version{}, fmt.Errorf("registry: %s: %w", f.Path(), err)
	}
	b, err := source.Marshal(d)
	if err != nil {
		return Version{}, fmt.Errorf("registry: %s: %w", f.Path(), err)
	}
	// The usual start: everything is there, nothing is compiled.
	v, ok, err := o.find(ctx, subject, source.Fingerprint(b, s.References))
	if err != nil {
		return Version{}, err
	}
	if !ok {
		// A new directory: the compiler that built this program has checked the file, so that only its text is made. A test
		// holds that the text is the same schema.
		p := parsed{Schema: s, canonical: b, fingerprint: source.Fingerprint(b, s.References)}
		d.Name = proto.String(f.Path())
		if p.descriptor, err = source.Marshal(d); err != nil {
			return Version{}, fmt.Errorf("registry: %s: %w", f.Path(), err)
		}
		if p.Text, err = source.Print(f); err != nil {
			return Version{}, fmt.Errorf("registry: %s: %w", f.Path(), err)
		}
		if v, err = o.add(ctx, subject, p, subject == f.Path()); err != nil {
			return Version{}, err
		}
	}
	o.files[subject] = v
	return v, nil
}

// find searches for a version. One that is softly deleted has the id that records are
// written with, but readers of subjects miss it: only owners that register nothing use it.
func (o *owner) find(ctx context.Context, subject, fingerprint string) (Version, bool, error) {
	versions, err := o.registry.versions(ctx, subject)
	if err != nil {
		return Version{}, false, err
	}
	for _, v := range versions {
		if !v.legacy && (!v.Deleted || !o.register) && v.identity() == fingerprint {
			return v, true, nil
		}
	}
	return Version{}, false, nil
}

// add registers a file; one that others import gets level NONE.
func (o *owner) add(ctx context.Context, subject string, p parsed, imported bool) (Version, error) {
	if !o.register {
		return Version{}, &MissingError{subject}
	}
	if imported {
		if _, set, err := o.registry.setting(ctx, levels, subject); err != nil {
			return Version{}, err
		} else if !set {
			if err := o.registry.SetLevel(ctx, subject, None); err != nil {
				return Version{}, err
			}
		}
	}
	v, err := o.registry.register(ctx, subject, p, RegisterOptions{own: true})
	if err != nil {
		return Version{}, fmt.Errorf("registry: register %s: %w", subject, err)
	}
	return v, nil
}
