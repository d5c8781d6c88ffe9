// Package release keeps the event schemas that have been released: images that are
// only ever added, and for each a corpus of its events in binary and JSON, which
// every later schema must still read.
//
// A folder of releases holds 0001.binpb, 0002.binpb and so on, buf images with
// deterministic bytes and without source positions, and for each image a folder of
// its number with <event>.v<version>.<n>.binpb and .json, the same event in both
// forms. Nothing in it is ever changed or removed.
//
// It owns this layout. It does not own the rules (package compat).
//
// Concurrency: one writer of a folder at a time; reading is free.
package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/compile"
	"github.com/parley-chat/parley/schemacheck/differential/sample"
	"github.com/parley-chat/parley/schemacheck/internal/load"
)

// Limits of a corpus: samples of an event, and the size of one in bytes.
const (
	maxSamples    = 6
	maxSampleSize = 4 << 10
)

// ErrNoEvent says that a schema has nothing to release.
var ErrNoEvent = errors.New("there is no event: no message declares one, no file is named as one, and none without services stands by itself")

// Image makes the image of a schema's events: all files of the packages that hold
// events, with their imports. Equal schemas give equal bytes. Patterns name events
// beside the declared ones, see schema.New.
func Image(files []protoreflect.FileDescriptor, events []string) ([]byte, error) {
	set := schema.New(files, events...)
	packages := map[protoreflect.FullName]bool{}
	for _, m := range set.Roots {
		packages[m.ParentFile().Package()] = true
	}
	if len(packages) == 0 {
		return nil, ErrNoEvent
	}
	image := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		p := protodesc.ToFileDescriptorProto(f)
		p.SourceCodeInfo = nil // comments may change
		if compile.WellKnown(f.Path()) {
			load.MarkImport(p)
		}
		image.File = append(image.File, p)
	}
	for _, f := range set.Scope {
		if packages[f.Package()] {
			add(f)
		}
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(image)
}

// Add releases a schema: it writes its image and the corpus of the events that are
// new or changed. It returns the image's name, "" if the last image is the same.
func Add(ctx context.Context, dir string, files []protoreflect.FileDescriptor, events []string) (string, error) {
	image, err := Image(files, events)
	if err != nil {
		return "", err
	}
	names, err := Names(dir)
	if err != nil {
		return "", err
	}
	var last *schema.FileSet
	if len(names) > 0 {
		b, err := os.ReadFile(filepath.Join(dir, names[len(names)-1]+suffix))
		if err != nil {
			return "", err
		}
		if bytes.Equal(b, image) {
			return "", nil
		}
		if last, err = fileSet(b, events); err != nil {
			return "", err
		}
	}
	name := fmt.Sprintf("%04d", len(names)+1)
	if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
		return "", err
	}
	set, err := fileSet(image, events)
	if err != nil {
		return "", err
	}
	for _, m := range set.Roots {
		if last != nil && used(last, last.Messages[m.FullName()]) == used(set, m) {
			continue
		}
		if err := writeSamples(ctx, filepath.Join(dir, name), set, m); err != nil {
			return "", err
		}
	}
	return name, os.WriteFile(filepath.Join(dir, name+suffix), image, 0o644)
}

const suffix = ".binpb"

// Names returns the numbers of the images in a folder, oldest first.
func Names(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "[0-9]*"+suffix))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var names []string
	for i, p := range paths {
		name := strings.TrimSuffix(filepath.Base(p), suffix)
		if name != fmt.Sprintf("%04d", i+1) {
			return nil, fmt.Errorf("%s: image %04d%s is missing", dir, i+1, suffix)
		}
		names = append(names, name)
	}
	return names, nil
}

func fileSet(image []byte, events []string) (*schema.FileSet, error) {
	s, err := load.Image(image)
	if err != nil {
		return nil, err
	}
	return schema.New(s.Files, events...), nil
}

// used is the text of an event and all that it uses, "" for none.
func used(s *schema.FileSet, m protoreflect.MessageDescriptor) string {
	if m == nil {
		return ""
	}
	var parts []string
	for name := range s.Reach(func(yield func(protoreflect.MessageDescriptor) bool) { yield(m) }) {
		var p proto.Message
		if e := s.Enums[name]; e != nil {
			p = protodesc.ToEnumDescriptorProto(e)
		} else {
			p = protodesc.ToDescriptorProto(s.Messages[name])
		}
		b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(p) // descriptors that were linked can be written
		parts = append(parts, fmt.Sprintf("%s %x", name, b))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// writeSamples writes a few valid events, the most typical one first.
func writeSamples(ctx context.Context, dir string, s *schema.FileSet, m protoreflect.MessageDescriptor) error {
	v, err := sample.Validator(s)
	if err != nil {
		return err
	}
	g := sample.New(v, sample.Alone{}, 1)
	all, err := g.Messages(ctx, m)
	if err != nil {
		return fmt.Errorf("samples of %s: %w", m.FullName(), err)
	}
	all = slices.DeleteFunc(all, func(m protoreflect.Message) bool { return proto.Size(m.Interface()) > maxSampleSize })
	step := max(1, len(all)/maxSamples)
	for n := 0; n < maxSamples && n*step < len(all); n++ {
		one := all[n*step].Interface()
		binary, err := proto.MarshalOptions{Deterministic: true}.Marshal(one)
		if err != nil {
			return err
		}
		text, err := protojson.MarshalOptions{EmitDefaultValues: false}.Marshal(one)
		if err != nil {
			return err
		}
		var stable bytes.Buffer // protojson varies its white space on purpose
		if err := json.Indent(&stable, text, "", "  "); err != nil {
			return err
		}
		base := filepath.Join(dir, fmt.Sprintf("%s.v%d.%d", m.FullName(), max(s.Events[m.FullName()].Version, 1), n+1))
		if err := os.WriteFile(base+".json", append(stable.Bytes(), '\n'), 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(base+suffix, binary, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Unread is a released event that a schema cannot read any more.
type Unread struct {
	Path  string // of its JSON form
	Event string // full name; "" if the file is not named after one
	What  string // what head does with it
}

// Verify reads the corpus with a schema and returns what it cannot read any more, and
// how many events there are.
func Verify(dir string, files []protoreflect.FileDescriptor, events []string) (problems []Unread, n int, err error) {
	image, err := Image(files, events)
	if err != nil {
		return nil, 0, err
	}
	set, err := fileSet(image, events)
	if err != nil {
		return nil, 0, err
	}
	v, err := sample.Validator(set)
	if err != nil {
		return nil, 0, err
	}
	names, err := Names(dir)
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		paths, err := filepath.Glob(filepath.Join(dir, name, "*.json"))
		if err != nil {
			return nil, 0, err
		}
		for _, p := range paths {
			n++
			event, ok := eventOf(p)
			if !ok {
				problems = append(problems, Unread{p, "", "finds a file that is not named <event>.v<version>.<n>.json"})
				continue
			}
			m := set.Messages[protoreflect.FullName(event)]
			if m == nil {
				problems = append(problems, Unread{p, event, "has no such message any more"})
				continue
			}
			if what, err := unreadable(p, m, func(e proto.Message) error { return v.Validate(e) }); err != nil {
				return nil, 0, err
			} else if what != "" {
				problems = append(problems, Unread{p, event, what})
			}
		}
	}
	return problems, n, nil
}

// eventOf takes the event's full name from a sample's path. The name itself may
// hold dots and versions.
func eventOf(path string) (string, bool) {
	parts := strings.Split(strings.TrimSuffix(filepath.Base(path), ".json"), ".")
	if len(parts) < 3 {
		return "", false
	}
	return strings.Join(parts[:len(parts)-2], "."), true
}

// unreadable says why an event of the corpus cannot be read: its two forms must be
// decoded, be the same event, and be valid.
func unreadable(path string, m protoreflect.MessageDescriptor, validate func(proto.Message) error) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	binary, err := os.ReadFile(strings.TrimSuffix(path, ".json") + suffix)
	if errors.Is(err, fs.ErrNotExist) {
		return "finds no binary form beside it", nil
	}
	if err != nil {
		return "", err
	}
	b, j := dynamicpb.NewMessage(m), dynamicpb.NewMessage(m)
	if err := proto.Unmarshal(binary, b); err != nil {
		return "cannot decode its binary form", nil //nolint:nilerr // this is the finding
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, j); err != nil {
		return "cannot decode its JSON form", nil //nolint:nilerr // this is the finding
	}
	known, err := proto.Marshal(b)
	if err != nil {
		return "", err
	}
	stripped := dynamicpb.NewMessage(m)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(known, stripped); err != nil {
		return "", err
	}
	if !proto.Equal(stripped, j) {
		return "reads its binary form and its JSON form as different events", nil
	}
	if validate(b) != nil {
		return "refuses it with its validation rules", nil //nolint:nilerr // this is the finding
	}
	return "", nil
}

// Unchanged returns what the commits up to HEAD have in the folder and it has no
// more, or has otherwise, a sentence each. Whole is false where not all of the
// history can be seen: in a shallow clone, or outside git.
func Unchanged(ctx context.Context, dir string) (problems []string, whole bool, err error) {
	blobs, whole, err := load.History(ctx, dir)
	if err != nil {
		return nil, false, err
	}
	for _, p := range blobs {
		if !strings.HasSuffix(p.Path, suffix) && !strings.HasSuffix(p.Path, ".json") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(p.Path)))
		switch {
		case errors.Is(err, os.ErrNotExist):
			problems = append(problems, fmt.Sprintf("%s: released and removed; put it back", filepath.Join(dir, p.Path)))
		case err != nil:
			return nil, false, err
		case load.BlobID(b, len(p.ID)) != p.ID:
			problems = append(problems, fmt.Sprintf("%s: released and changed; put it back as it was",
				filepath.Join(dir, p.Path)))
		}
	}
	return problems, whole, nil
}
