package schema

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/server/topic/refusal"
)

// shared are files that a schema imports and that this program has in the same words, by path: those of
// protovalidate are larger than most schemas.
type shared map[string]protoreflect.FileDescriptor

// link makes descriptors of the runtime's of those of the compiler, with options as this program
// knows them. size is how many bytes those have that are not shared.
func link(file protoreflect.FileDescriptor) (files *protoregistry.Files, common shared, size int, err error) {
	r := resolver{&protoregistry.Files{}, shared{}}
	var own []protoreflect.FileDescriptor // imports first
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] || f.IsPlaceholder() {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		if known := r.known(f); known != nil {
			r.shared[f.Path()] = known
			return
		}
		own = append(own, f)
	}
	add(file)
	for _, f := range own {
		d := protodesc.ToFileDescriptorProto(f)
		d.SourceCodeInfo = nil
		b, err := proto.Marshal(d)
		if err != nil {
			return nil, nil, 0, fmt.Errorf("link: %w", err)
		}
		if size += len(b); size > maxDescriptors {
			return nil, nil, 0, refusal.New(refusal.InvalidArgument,
				"the schema has more than %d bytes with all that it imports, which is as many as a topic's may have", maxDescriptors)
		}
		d = &descriptorpb.FileDescriptorProto{} // the compiler's options become those of this program
		if err := proto.Unmarshal(b, d); err != nil {
			return nil, nil, 0, fmt.Errorf("link: %w", err)
		}
		linked, err := protodesc.FileOptions{}.New(d, r)
		if err == nil {
			err = r.Files.RegisterFile(linked)
		}
		if err != nil {
			return nil, nil, 0, fmt.Errorf("link: %w", err)
		}
	}
	return r.Files, r.shared, size, nil
}

// resolver finds what a file imports.
type resolver struct {
	*protoregistry.Files
	shared
}

// known returns this program's file for one that is the same, nil if there is none, or if what the file
// imports is not this program's.
func (r resolver) known(f protoreflect.FileDescriptor) protoreflect.FileDescriptor {
	known, err := protoregistry.GlobalFiles.FindFileByPath(f.Path())
	if err != nil {
		return nil
	}
	for i := range f.Imports().Len() {
		if r.shared[f.Imports().Get(i).Path()] == nil {
			return nil
		}
	}
	if known != f && string(plain(known)) != string(plain(f)) {
		return nil
	}
	return known
}

// plain is a file's descriptor without source positions, equal ones with equal bytes.
func plain(f protoreflect.FileDescriptor) []byte {
	d := protodesc.ToFileDescriptorProto(f)
	d.SourceCodeInfo = nil
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(d) // one that cannot be written equals none
	return b
}

// FindFileByPath implements protodesc.Resolver.
func (r resolver) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if f := r.shared[path]; f != nil {
		return f, nil
	}
	return r.Files.FindFileByPath(path)
}

// FindDescriptorByName implements protodesc.Resolver.
func (r resolver) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err == nil && r.shared[d.ParentFile().Path()] != nil {
		return d, nil
	}
	return r.Files.FindDescriptorByName(name)
}

// types are those of a schema and of all that it imports.
type types struct {
	*dynamicpb.Types
	shared
}

// FindMessageByName implements protoregistry.MessageTypeResolver.
func (t types) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	return t.orShared(protoregistry.GlobalTypes.FindMessageByName(name))(t.Types.FindMessageByName(name))
}

// FindMessageByURL implements protoregistry.MessageTypeResolver.
func (t types) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	return t.orShared(protoregistry.GlobalTypes.FindMessageByURL(url))(t.Types.FindMessageByURL(url))
}

// orShared chooses a type of this program if it is of a shared file, else the schema's own.
func (t types) orShared(
	known protoreflect.MessageType, err error,
) func(own protoreflect.MessageType, err error) (protoreflect.MessageType, error) {
	return func(own protoreflect.MessageType, ownErr error) (protoreflect.MessageType, error) {
		if err == nil && t.shared[known.Descriptor().ParentFile().Path()] != nil {
			return known, nil
		}
		return own, ownErr
	}
}
