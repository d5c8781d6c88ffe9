package load

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/schemacheck/compile"
)

// imageSuffix is that of images in a folder.
const imageSuffix = ".binpb"

// buf marks imports in an image with field 1 of field 8042 of a file.
const (
	bufExtension = 8042
	isImport     = 1
)

// imagesOf reads the images of a folder, ordered as numbers in their names are:
// v9 comes before v10.
func imagesOf(dir string, exclude []string) ([]*Schema, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+imageSuffix))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	var list []*Schema
	for _, p := range paths {
		s, err := readImage(p, exclude)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func readImage(path string, exclude []string) (*Schema, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxImage+1))
	if err == nil && bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
			b, err = io.ReadAll(io.LimitReader(z, maxImage+1))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(b) > maxImage {
		return nil, fmt.Errorf("%s is larger than %d MiB", path, maxImage>>20)
	}
	s, err := Image(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.Name = filepath.Base(path)
	s.Files = slices.DeleteFunc(s.Files, func(f protoreflect.FileDescriptor) bool { return Matches(exclude, f.Path()) })
	return s, nil
}

// Image makes a Schema of a buf image or a FileDescriptorSet, in binary form or JSON. Files that are marked
// as imports, and well-known ones, are not in its scope.
func Image(b []byte) (*Schema, error) {
	b, err := binaryImage(b)
	if err != nil {
		return nil, err
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(b, set); err != nil || len(set.GetFile()) == 0 {
		return nil, errors.New("neither a buf image nor a FileDescriptorSet, in binary form or JSON; buf build -o image.binpb makes one")
	}
	var scope []string
	for _, f := range set.GetFile() {
		if !compile.WellKnown(f.GetName()) && !marked(f) {
			scope = append(scope, f.GetName())
		}
	}
	files, err := compile.Link(set)
	if err != nil {
		return nil, err
	}
	s := &Schema{}
	slices.Sort(scope)
	for _, name := range slices.Compact(scope) {
		f, err := files.FindFileByPath(name)
		if err != nil {
			return nil, err
		}
		s.Files = append(s.Files, f)
	}
	return s, nil
}

// marked reads buf's mark of imports, which no generated type here knows.
func marked(f *descriptorpb.FileDescriptorProto) bool {
	var ext []byte
	for b := f.ProtoReflect().GetUnknown(); len(b) > 0; {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		m := protowire.ConsumeFieldValue(num, typ, b[n:])
		if m < 0 {
			return false
		}
		if num == bufExtension && typ == protowire.BytesType {
			ext, _ = protowire.ConsumeBytes(b[n:])
		}
		b = b[n+m:]
	}
	for len(ext) > 0 {
		num, typ, n := protowire.ConsumeTag(ext)
		if n < 0 {
			return false
		}
		m := protowire.ConsumeFieldValue(num, typ, ext[n:])
		if m < 0 {
			return false
		}
		if num == isImport && typ == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(ext[n:])
			return v != 0
		}
		ext = ext[n+m:]
	}
	return false
}

// MarkImport marks a file as an import, as buf does.
func MarkImport(f *descriptorpb.FileDescriptorProto) {
	ext := protowire.AppendVarint(protowire.AppendTag(nil, isImport, protowire.VarintType), 1)
	b := protowire.AppendTag(f.ProtoReflect().GetUnknown(), bufExtension, protowire.BytesType)
	f.ProtoReflect().SetUnknown(protowire.AppendBytes(b, ext))
}
