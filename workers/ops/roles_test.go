package ops

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/server/auth"
)

// S-52: each procedure that operators are served has a role, and none that changes
// something is a viewer's. One that is not in the table is an admin's.
func TestSec_S_52_EveryProcedureHasARole(t *testing.T) {
	n := 0
	for _, pkg := range []protoreflect.FullName{"parley.ops.v1", "parley.admin.v1", "parley.topic.v1"} {
		protoregistry.GlobalFiles.RangeFilesByPackage(pkg, func(f protoreflect.FileDescriptor) bool {
			for i := range f.Services().Len() {
				s := f.Services().Get(i)
				for j := range s.Methods().Len() {
					m := s.Methods().Get(j)
					n++
					role, ok := LeastRole("/" + string(s.FullName()) + "/" + string(m.Name()))
					if !ok {
						t.Errorf("%s has no role", m.FullName())
					}
					o, _ := m.Options().(*descriptorpb.MethodOptions)
					if o.GetIdempotencyLevel() != descriptorpb.MethodOptions_NO_SIDE_EFFECTS && role == auth.Viewer {
						t.Errorf("%s changes something, and viewers may", m.FullName())
					}
				}
			}
			return true
		})
	}
	if n < 60 {
		t.Fatalf("%d procedures were found", n)
	}
	if size := numProcedures(); size != n {
		t.Errorf("the table has %d procedures, the contracts %d", size, n)
	}
	for _, path := range []string{"/parley.ops.v1.OpsService/ListOperatorCalls", "/parley.admin.v1.AuditService/ListAudit",
		"/parley.topic.v1.TopicAdminService/ListAudit"} { // what operators did is not for viewers
		if role, ok := LeastRole(path); role != auth.Moderator || !ok {
			t.Errorf("%q: %s, %v", path, role, ok)
		}
	}
	for _, path := range []string{"", "/", "/debug/pprof/", "/parley.admin.v1.UserAdminService/",
		"/parley.admin.v1.X/GetUser", "/parley.admin.v1.UserAdminService/GetUser/",
		"/parley.admin.v1.UserAdminService/getuser"} {
		if role, ok := LeastRole(path); role != auth.Admin || ok {
			t.Errorf("%q: %s, %v", path, role, ok)
		}
	}
}
