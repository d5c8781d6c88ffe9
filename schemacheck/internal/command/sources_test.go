package command

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compile"
)

func expect(t *testing.T, dir string, code int, says string, args ...string) outcome {
	t.Helper()
	got := run(t, dir, args...)
	if got.code != code || !strings.Contains(got.out+got.err, says) {
		t.Errorf("schemacheck %v: exit %d, want %d and %q\n%s%s", args, got.code, code, says, got.out, got.err)
	}
	return got
}

func link(t *testing.T, dir, target, name string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, p); err != nil {
		t.Fatal(err)
	}
}

const note = "syntax = \"proto3\";\npackage shop.v1;\nmessage NoteTaken { string text = 1; }\n"

// A link within the tree is followed, in the work tree, in commits and in the index;
// what it leads to is judged once.
func TestLinksAreFollowed(t *testing.T) {
	t.Parallel()
	dir := repository(t, map[string]string{"shared/note.txt": note,
		"real/shop/v1/kept.proto": strings.ReplaceAll(note, "NoteTaken", "NoteKept")})
	link(t, dir, "../../../shared/note.txt", "proto/shop/v1/note.proto") // a file whose own name is no schema's
	link(t, dir, "real/shop", "alias")                                   // a folder that is in the tree
	link(t, dir, "kept.proto", "real/shop/v1/again.proto")               // a file that is in the tree
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "links")
	for _, head := range []string{".", ":index", "git:main"} {
		got := expect(t, dir, Clean, "2 files of", "--base", "main", "--head", head)
		if !strings.Contains(got.out, "judged as events: shop.v1.NoteKept, shop.v1.NoteTaken;") {
			t.Errorf("%s: %s", head, got.out)
		}
	}
	write(t, dir, map[string]string{"shared/note.txt": strings.ReplaceAll(note, "text", "words")})
	expect(t, dir, Findings, "proto/shop/v1/note.proto:3:21: block FIELD_RENAMED (N01) shop.v1.NoteTaken.words", "--base",
		"main")
	expect(t, dir, Clean, "compatible", "--base", "main", "--head", ":index")
	git(t, dir, "add", ".")
	expect(t, dir, Findings, "block FIELD_RENAMED (N01)", "--base", "main", "--head", ":index")
}

// A schema that leads out of the tree, nowhere, or in a circle is refused; a folder
// that does is named.
func TestLinksAreRefused(t *testing.T) {
	t.Parallel()
	elsewhere := write(t, t.TempDir(), map[string]string{"note.proto": note})
	for name, tt := range map[string]struct {
		target, at string
		code       int
		says       string
	}{
		"out": {elsewhere + "/note.proto", "shop/v1/a.proto", Failed,
			"shop/v1/a.proto is a symbolic link that leads outside of what is compared"},
		"out, by dots": {"../../../x.proto", "shop/v1/a.proto", Failed, "leads outside"},
		"nowhere": {"b.proto", "shop/v1/a.proto", Failed,
			"shop/v1/a.proto is a symbolic link to shop/v1/b.proto, which is not there"},
		"itself":         {"a.proto", "shop/v1/a.proto", Failed, "leads in a circle"},
		"a folder, out":  {elsewhere, "bazel-out", Clean, "bazel-out of "},
		"a folder above": {"..", "shop/loop", Clean, "compatible"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := repository(t, shop())
			link(t, dir, tt.target, tt.at)
			expect(t, dir, tt.code, tt.says, "--base", "main")
			git(t, dir, "add", ".")
			expect(t, dir, tt.code, strings.Replace(tt.says, "bazel-out of ", "bazel-out of the index", 1), "--base", "main",
				"--head", ":index")
		})
	}
}

// What cannot be read says where, why, and which way there is.
func TestSourcesThatAreRefused(t *testing.T) {
	t.Parallel()
	const head = "syntax = \"proto3\";\npackage a.v1;\n"
	for name, tt := range map[string]struct {
		files map[string]string
		says  []string
	}{
		"not UTF-8": {
			map[string]string{"a.proto": head + "message A {\n  // caf\xe9\n}\n"},
			[]string{"a.proto:4:9: the file is not UTF-8"},
		},
		"edition 2024": {
			map[string]string{"a.proto": "edition = \"2024\";\npackage a.v1;\n"},
			[]string{"a.proto:1:11: edition 2024 is not compiled from source here", "protoc --include_imports"},
		},
		"missing import": {
			map[string]string{"a.proto": head + "import \"acme/b.proto\";\n"},
			[]string{`a.proto:3:8: "acme/b.proto" is neither given nor built in`, "buf build -o image.binpb"},
		},
		"module that is not cached": {
			map[string]string{"a.proto": head + "import \"acme/b.proto\";\n", "buf.yaml": "version: v2\n",
				"buf.lock": "version: v2\ndeps:\n  - name: buf.build/acme/b\n    commit: 01ab\n    digest: b5:00\n"},
			[]string{"a.proto:3:8: ", "buf.lock names buf.build/acme/b, which buf's cache does not hold",
				"buf build -o image.binpb"},
		},
		"module with a path": {
			map[string]string{"a.proto": head + "import \"acme/b.proto\";\n", "buf.yaml": "version: v2\n",
				"buf.lock": "version: v2\ndeps:\n  - name: ../../../../etc\n    commit: 01ab\n    digest: b5:00\n"},
			[]string{"buf's cache does not hold"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, t.TempDir(), tt.files)
			for _, says := range tt.says {
				expect(t, dir, Failed, says, "--base", ".")
			}
		})
	}
}

// Imports are found in buf's cache and where they stand vendored; neither is judged.
func TestBorrowedImports(t *testing.T) {
	t.Parallel()
	const user = "syntax = \"proto3\";\npackage shop.v1;\nimport \"acme/b/v1/b.proto\";\nmessage Sold { acme.b.v1.B b = 1; }\n"
	const lib = "syntax = \"proto3\";\npackage acme.b.v1;\nimport \"acme/b/v1/c.proto\";\nmessage B { C c = 1; }\n"
	const more = "syntax = \"proto3\";\npackage acme.b.v1;\nmessage C { string x = 1; }\n"
	lock := map[string]string{
		"v2": "version: v2\ndeps:\n  - name: buf.build/acme/b\n    commit: 0123456789abcdef0123456789abcdef\n    digest: b5:00ff\n",
		"v1": "version: v1\ndeps:\n  - remote: buf.build\n    owner: acme\n    repository: b\n    commit: 01234567-89ab-cdef-0123-456789abcdef\n    digest: b5:00ff\n",
	}
	for version, text := range lock {
		cache := write(t, t.TempDir(), map[string]string{
			"v3/modules/b5/buf.build/acme/b/0123456789abcdef0123456789abcdef/files/acme/b/v1/b.proto": lib,
			"v3/modules/b5/buf.build/acme/b/0123456789abcdef0123456789abcdef/files/acme/b/v1/c.proto": more,
		})
		dir := write(t, t.TempDir(), map[string]string{"proto/shop/v1/sold.proto": user, "proto/buf.yaml": "version: v1\n",
			"proto/buf.lock": text})
		var out, msg bytes.Buffer
		code := Run(t.Context(), []string{"--base", "."},
			Env{Dir: dir, Stdout: &out, Stderr: &msg, Getenv: func(name string) string {
				return map[string]string{"BUF_CACHE_DIR": cache}[name]
			}})
		if code != Clean || !strings.Contains(out.String(), "1 file of") {
			t.Errorf("%s: exit %d\n%s%s", version, code, out.String(), msg.String())
		}
	}
	vendored := map[string]string{
		"proto/shop/v1/sold.proto": user, "buf.yaml": "version: v2\nmodules: [{path: proto}]\n",
		"third_party/acme/b/v1/b.proto": lib, "third_party/acme/b/v1/c.proto": more,
	}
	dir := repository(t, vendored)
	expect(t, dir, Clean, "1 file of", "--base", "main")
	write(t, dir, map[string]string{"third_party/acme/b/v1/c.proto": strings.ReplaceAll(more, "string x", "bytes x")})
	expect(t, dir, Findings, "acme.b.v1.C.x", "--base", "main") // a type that the event uses
}

// Features of Java and C++ are built in, also for images.
func TestFeatures(t *testing.T) {
	t.Parallel()
	const text = `edition = "2023";
package a.v1;
import "google/protobuf/cpp_features.proto";
import "google/protobuf/java_features.proto";
option features.(pb.java).utf8_validation = VERIFY;
message Sent { string x = 1 [features.(pb.cpp).string_type = VIEW]; }
`
	dir := repository(t, map[string]string{"a.proto": text})
	expect(t, dir, Clean, "1 file of", "--base", "main")
	write(t, dir, map[string]string{"a.proto": strings.ReplaceAll(text, "string x", "string y")})
	expect(t, dir, Findings, "block FIELD_RENAMED (N01)", "--base", "main")
	files, mistakes := compile.Files(t.Context(), map[string]string{"a.proto": text}, []string{"a.proto"})
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	b, err := proto.Marshal(&descriptorpb.FileDescriptorSet{
		File: []*descriptorpb.FileDescriptorProto{protodesc.ToFileDescriptorProto(files[0])}})
	if err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "image.binpb")
	if err := os.WriteFile(image, b, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, dir, Findings, "block FIELD_RENAMED (N01)", "--base", image)
}

// An image in JSON is the same as in binary, with the values of its options, also
// packed. One whose options nobody declares is refused.
func TestImagesInJSON(t *testing.T) {
	t.Parallel()
	text := map[string]string{
		"shop/v1/options.proto": strings.Replace(placed, "import \"shop/v1/item.proto\";\n", "", 1),
		"shop/v1/item.proto":    item, "shop/v1/placed.proto": event,
	}
	dir := repository(t, text)
	files, mistakes := compile.Files(t.Context(), text,
		[]string{"shop/v1/placed.proto", "shop/v1/options.proto", "shop/v1/item.proto"})
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	image := func(of ...int) []byte {
		set, types := &descriptorpb.FileDescriptorSet{}, &dynamicTypes{files: files}
		for _, i := range of {
			set.File = append(set.File, protodesc.ToFileDescriptorProto(files[i]))
		}
		b, err := proto.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		known := &descriptorpb.FileDescriptorSet{}
		if err := (proto.UnmarshalOptions{Resolver: types}).Unmarshal(b, known); err != nil {
			t.Fatal(err)
		}
		out, err := protojson.MarshalOptions{Resolver: types}.Marshal(known)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	put := func(name string, b []byte) string {
		p := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	whole := image(0, 1, 2)
	if !bytes.Contains(whole, []byte("[shop.v1.event]")) {
		t.Fatalf("no option in %s", whole)
	}
	got := expect(t, dir, Clean, "3 files of", "--base", put("image.json", whole))
	if !strings.Contains(got.out, "shop.v1.OrderPlaced version 1 on orders") {
		t.Error(got.out)
	}
	expect(t, dir, Findings, "block EVENT_TOPIC_CHANGED (X01) shop.v1.OrderPlaced", "--base",
		put("image.json", bytes.Replace(whole, []byte(`"orders"`), []byte(`"bills"`), 1)))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(whole); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	expect(t, dir, Clean, "3 files of", "--base", put("image.json.gz", packed.Bytes()))
	marked := bytes.Replace(whole, []byte(`"name":"shop/v1/item.proto"`),
		[]byte(`"bufExtension":{"isImport":true},"name":"shop/v1/item.proto"`), 1)
	marked = bytes.Replace(marked, []byte(`"name": "shop/v1/item.proto"`),
		[]byte(`"bufExtension":{"isImport":true},"name":"shop/v1/item.proto"`), 1)
	expect(t, dir, Clean, "2 files of", "--base", "main", "--head", put("image.json", marked))
	lacking := bytes.ReplaceAll(whole, []byte("[shop.v1.event]"), []byte("[shop.v1.other]"))
	expect(t, dir, Failed, "it lacks the files that declare its options shop.v1.other", "--base",
		put("image.json", lacking))
	expect(t, dir, Failed, "neither a buf image nor a FileDescriptorSet", "--base",
		put("image.json", []byte(`{"file": 1}`)))
}

// dynamicTypes finds the extensions of files.
type dynamicTypes struct{ files []protoreflect.FileDescriptor }

func (d *dynamicTypes) FindExtensionByNumber(
	message protoreflect.FullName, n protoreflect.FieldNumber,
) (protoreflect.ExtensionType, error) {
	for _, f := range d.files {
		for i := range f.Extensions().Len() {
			if x := f.Extensions().Get(i); x.Number() == n && x.ContainingMessage().FullName() == message {
				return dynamicpb.NewExtensionType(x), nil
			}
		}
	}
	return nil, protoregistry.NotFound
}

func (d *dynamicTypes) FindExtensionByName(protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

func (d *dynamicTypes) FindMessageByName(protoreflect.FullName) (protoreflect.MessageType, error) {
	return nil, protoregistry.NotFound
}

func (d *dynamicTypes) FindMessageByURL(string) (protoreflect.MessageType, error) {
	return nil, protoregistry.NotFound
}

// A branch without schemas, or without commits, is a base on which everything is new.
func TestFirstSchemas(t *testing.T) {
	t.Parallel()
	dir := repository(t, map[string]string{"README.md": "nothing yet"})
	write(t, dir, shop())
	expect(t, dir, Clean, "has no .proto file: everything is new", "--base", "main")
	empty := t.TempDir()
	git(t, empty, "init", "-q", "-b", "main")
	write(t, empty, shop())
	git(t, empty, "add", ".")
	expect(t, empty, Clean, "there is no commit yet: everything is new", "--base", "HEAD", "--head", ":index")
	expect(t, empty, Failed, "no directory, image or git ref here", "--base", "main", "--head", ":index")
}

// What is staged is judged, whatever the work tree holds; a conflict is refused.
func TestIndex(t *testing.T) {
	t.Parallel()
	dir := repository(t, shop())
	write(t, dir, shop("string order_id", "string id"))
	git(t, dir, "add", ".")
	write(t, dir, shop())
	expect(t, dir, Clean, "compatible", "--base", "HEAD")
	expect(t, dir, Findings, "shop/v1/order.proto:7:3: block FIELD_RENAMED (N01) shop.v1.OrderPlaced.id", "--base", "HEAD",
		"--head", ":index")
	git(t, dir, "stash", "-q")
	git(t, dir, "checkout", "-q", "-b", "other")
	write(t, dir, shop("string order_id", "string other_id"))
	git(t, dir, "commit", "-qam", "other")
	git(t, dir, "checkout", "-q", "main")
	write(t, dir, shop("string order_id", "string main_id"))
	git(t, dir, "commit", "-qam", "main")
	if code, _ := script(t, dir, "git merge other"); code == 0 {
		t.Fatal("no conflict")
	}
	expect(t, dir, Failed, "shop/v1/order.proto is in conflict: resolve it first", "--base", "HEAD", "--head", ":index")
}
