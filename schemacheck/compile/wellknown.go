package compile

import (
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	// Each import links the files of its package into the binary.
	_ "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	_ "google.golang.org/genproto/googleapis/api"
	_ "google.golang.org/genproto/googleapis/api/annotations"
	_ "google.golang.org/genproto/googleapis/api/httpbody"
	_ "google.golang.org/genproto/googleapis/api/label"
	_ "google.golang.org/genproto/googleapis/api/visibility"
	_ "google.golang.org/genproto/googleapis/rpc/code"
	_ "google.golang.org/genproto/googleapis/rpc/context/attribute_context"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails"
	_ "google.golang.org/genproto/googleapis/rpc/http"
	_ "google.golang.org/genproto/googleapis/rpc/status"
	_ "google.golang.org/protobuf/types/known/anypb"
	_ "google.golang.org/protobuf/types/known/apipb"
	_ "google.golang.org/protobuf/types/known/durationpb"
	_ "google.golang.org/protobuf/types/known/emptypb"
	_ "google.golang.org/protobuf/types/known/fieldmaskpb"
	_ "google.golang.org/protobuf/types/known/sourcecontextpb"
	_ "google.golang.org/protobuf/types/known/structpb"
	_ "google.golang.org/protobuf/types/known/timestamppb"
	_ "google.golang.org/protobuf/types/known/typepb"
	_ "google.golang.org/protobuf/types/known/wrapperspb"
	_ "google.golang.org/protobuf/types/pluginpb"
)

var standard = protocompile.WithStandardImports(
	protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		return protocompile.SearchResult{}, absent(path)
	}))

// Other files that are linked into a binary are not well known: a schema must
// bring them itself.
var folders = []string{"google/protobuf/", "buf/validate/", "google/api/", "google/rpc/"}

// WellKnown says whether a path is in one of the folders whose files need not be
// brought along, whether or not the file is there. Copies of such files in a tree
// are not the tree's own contracts.
func WellKnown(path string) bool {
	for _, f := range folders {
		if strings.HasPrefix(path, f) {
			return true
		}
	}
	return false
}

// BuiltIn returns a well-known file, of which the caller may change what it gets;
// nil if it is not linked in.
func BuiltIn(path string) *descriptorpb.FileDescriptorProto {
	f := builtIn(path)
	if f == nil {
		return nil
	}
	return proto.CloneOf(protodesc.ToFileDescriptorProto(f))
}

// builtIn returns a well-known file, nil if it is not linked in.
func builtIn(path string) protoreflect.FileDescriptor {
	if !WellKnown(path) {
		return nil
	}
	if f, err := protoregistry.GlobalFiles.FindFileByPath(path); err == nil {
		return f
	}
	// Features of Java and C++ are no Go package; the compiler brings them.
	r, err := standard.FindFileByPath(path)
	if err != nil {
		return nil
	}
	return r.Desc
}
