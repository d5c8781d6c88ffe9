package adminapi_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/ops"
	"github.com/parley-chat/parley/workers/ops/adminapi"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// client makes requests with a token.
func client(token string) *http.Client {
	return &http.Client{Transport: bearing{token}}
}

type bearing struct{ token string }

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

// as is a client for an operator with a role.
func as(t *testing.T, r *opstest.Fixture, role auth.Role) *http.Client {
	t.Helper()
	token, err := r.Key.IssueRole("ada", role, time.Now(), time.Minute)
	testkit.Must(t, err)
	return client(token)
}

// reason is the reason of an error, "" for none.
func reason(err error) string {
	var e *connect.Error
	if !errors.As(err, &e) {
		return ""
	}
	for _, d := range e.Details() {
		if m, err := d.Value(); err == nil {
			if info, ok := m.(*errdetails.ErrorInfo); ok {
				return info.GetReason()
			}
		}
	}
	return e.Code().String()
}

func wantReason(t *testing.T, what string, err error, want string) {
	t.Helper()
	if got := reason(err); got != want {
		t.Errorf("%s: %q (%v), not %q", what, got, err, want)
	}
}

// records lists the audit.
func records(t *testing.T, r *opstest.Fixture, f *adminv1.AuditFilter) []*adminv1.AuditRecord {
	t.Helper()
	res, err := adminv1connect.NewAuditServiceClient(as(t, r, auth.Moderator), "http://"+r.Addr).ListAudit(t.Context(),
		&adminv1.ListAuditRequest{Filter: f})
	testkit.Must(t, err)
	return res.GetRecords()
}

// post calls a procedure without a body's content, and returns the status and the answer.
func post(t *testing.T, c *http.Client, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
	testkit.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := c.Do(req)
	testkit.Must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	return res.StatusCode, string(b)
}

// S-52: a call without the role that its procedure wants does nothing and leaves an event; a
// user's token is none at all.
func TestSec_S_52_RolesAreRequired(t *testing.T) {
	r := opstest.New(t, nil)
	user, err := r.Key.Issue("ada", time.Now(), time.Minute)
	testkit.Must(t, err)
	n, refused := 0, 0
	for _, pkg := range []protoreflect.FullName{"parley.ops.v1", "parley.admin.v1", "parley.topic.v1"} {
		protoregistry.GlobalFiles.RangeFilesByPackage(pkg, func(f protoreflect.FileDescriptor) bool {
			for i := range f.Services().Len() {
				methods := f.Services().Get(i).Methods()
				for j := range methods.Len() {
					path := fmt.Sprintf("/%s/%s", f.Services().Get(i).FullName(), methods.Get(j).Name())
					least, _ := ops.LeastRole(path)
					n++
					for _, role := range auth.Roles() {
						status, body := post(t, as(t, r, role), "http://"+r.Addr+path)
						no := status == http.StatusForbidden && strings.Contains(body, "ROLE_REQUIRED") &&
							strings.Contains(body, "needs the role "+string(least))
						if no == role.Includes(least) || status == http.StatusForbidden && !no {
							t.Errorf("%s as %s: %d %s", path, role, status, body)
						}
						if no {
							refused++
						}
					}
					if status, body := post(t, client(user), "http://"+r.Addr+path); status != http.StatusUnauthorized {
						t.Errorf("%s as a user: %d %s", path, status, body)
					}
				}
			}
			return true
		})
	}
	if n < 60 || refused < 40 {
		t.Fatalf("%d procedures, %d refusals", n, refused)
	}
	if steps := r.Identity.Steps(); len(steps) > 0 {
		t.Errorf("done: %v", steps)
	}
	got := records(t, r, &adminv1.AuditFilter{Actor: "ada", Action: "operator_refused",
		Target: "procedure" + adminv1connect.UserAdminServiceSuspendUserProcedure})
	if len(got) != 1 || got[0].GetOutcome() != "role_required" || got[0].GetKind() != adminv1.AuditKind_AUDIT_KIND_EVENT ||
		got[0].GetResult() != "needs the role moderator, has viewer" {
		t.Errorf("%v", got)
	}
}

// S-52: what changes something is a dry run without execute, and what is done to people or
// shows what they wrote wants a reason.
func TestSec_S_52_DryRunsAndReasons(t *testing.T) {
	creating := []protoreflect.Name{"CreateServiceAccount", "SetServiceScopes", "CreateServiceKey"}
	reading := []protoreflect.Name{"ReadMessages", "ExportAudit"}
	var changes, reasons int
	protoregistry.GlobalFiles.RangeFilesByPackage("parley.admin.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				o, _ := m.Options().(*descriptorpb.MethodOptions)
				changing := o.GetIdempotencyLevel() != descriptorpb.MethodOptions_NO_SIDE_EFFECTS
				has := func(name protoreflect.Name) bool { return m.Input().Fields().ByName(name) != nil }
				if changing != has("execute") {
					t.Errorf("%s changes something: %v, and has a dry run: %v", m.Name(), changing, has("execute"))
				}
				want := changing && !slices.Contains(creating, m.Name()) || slices.Contains(reading, m.Name())
				if want != has("reason") {
					t.Errorf("%s wants a reason: %v, and has one: %v", m.Name(), want, has("reason"))
				}
				if changing {
					changes++
				}
				if want {
					reasons++
				}
			}
		}
		return true
	})
	if changes != 9 || reasons != 8 {
		t.Errorf("%d procedures change something, %d want a reason", changes, reasons)
	}
}

// What users wrote is a moderator's, whatever the procedure.
func TestContentWantsARole(t *testing.T) {
	r := opstest.New(t, nil)
	id := r.DeadLetter(opstest.Group, r.Event("chat_01ARZ3NDEKTSV4RRFFQ69G5FAA", 1), "permanent: bad")
	for role, want := range map[auth.Role]string{auth.Viewer: "ROLE_REQUIRED", auth.Moderator: "", auth.Admin: ""} {
		c := opsv1connect.NewOpsServiceClient(as(t, r, role), "http://"+r.Addr)
		_, err := c.GetDeadLetter(t.Context(), &opsv1.GetDeadLetterRequest{Id: id})
		testkit.Must(t, err)
		res, err := c.GetDeadLetter(t.Context(), &opsv1.GetDeadLetterRequest{Id: id, Content: true})
		wantReason(t, string(role), err, want)
		if shown := strings.Contains(res.GetEventJson(), opstest.Secret); shown != (want == "") {
			t.Errorf("%s: shown: %v", role, shown)
		}
	}
}

// A suspension first keeps out, then ends what exists; a repetition resumes where an
// error stopped it. Without execute nothing is done, and what is done is on record by its
// target.
func TestSuspend(t *testing.T) {
	r := opstest.New(t, nil)
	testkit.Must(t, r.Chats.EnsureUser(t.Context(), "mallory"))
	r.Identity.SignIn("mallory", "ses_1")
	c := adminv1connect.NewUserAdminServiceClient(as(t, r, auth.Moderator), "http://"+r.Addr)
	suspend := func(execute bool) (*adminv1.UserAccount, error) {
		res, err := c.SuspendUser(t.Context(),
			&adminv1.SuspendUserRequest{UserId: "mallory", Reason: "spam", Execute: execute})
		return res.GetUser(), err
	}
	got, err := suspend(false)
	testkit.Must(t, err)
	if got.GetStatus() != adminv1.UserStatus_USER_STATUS_ACTIVE || len(r.Identity.Steps()) > 0 {
		t.Fatalf("a dry run did something: %v", got)
	}
	for _, fails := range []string{"suspend", "end everything"} {
		r.Identity.Fail = map[string]error{fails: errors.New("broken: " + opstest.Secret)}
		_, err = suspend(true)
		if wantReason(t, fails, err, "INTERNAL"); strings.Contains(err.Error(), opstest.Secret) {
			t.Error(err)
		}
	}
	r.Identity.Fail = nil
	r.Identity.Steps()
	got, err = suspend(true)
	testkit.Must(t, err)
	testkit.Equal(t, "steps", strings.Join(r.Identity.Steps(), ", "),
		"suspend mallory, end everything mallory")
	if got.GetStatus() != adminv1.UserStatus_USER_STATUS_SUSPENDED || got.GetCreatedAt() == nil ||
		got.GetUserId() != "mallory" {
		t.Errorf("%v", got)
	}
	back, err := c.RestoreUser(t.Context(),
		&adminv1.RestoreUserRequest{UserId: "mallory", Reason: "a mistake", Execute: true})
	testkit.Must(t, err)
	if back.GetUser().GetStatus() != adminv1.UserStatus_USER_STATUS_ACTIVE {
		t.Errorf("%v", back)
	}
	var outcomes []string
	for _, one := range records(t, r, &adminv1.AuditFilter{Target: "user/mallory"}) {
		outcomes = append(outcomes, one.GetAction()+" "+one.GetActor()+" "+one.GetOutcome())
		if !strings.Contains(one.GetRequest(), `"reason"`) || one.GetEndedAt() == nil {
			t.Errorf("%v", one)
		}
	}
	slices.Sort(outcomes) // those of one millisecond are in no order
	testkit.Equal(t, "records", strings.Join(outcomes, "; "),
		"RestoreUser ada ok; SuspendUser ada internal; SuspendUser ada internal; SuspendUser ada ok")

	_, err = c.GetUser(t.Context(), &adminv1.GetUserRequest{UserId: "nobody"})
	wantReason(t, "nobody", err, "USER_NOT_FOUND")
	_, err = c.SuspendUser(t.Context(), &adminv1.SuspendUserRequest{UserId: "nobody", Reason: "spam", Execute: true})
	wantReason(t, "suspend nobody", err, "USER_NOT_FOUND")
	_, err = c.SuspendUser(t.Context(), &adminv1.SuspendUserRequest{UserId: "mallory", Execute: true})
	wantReason(t, "no reason", err, "INVALID_ARGUMENT")
	if steps := r.Identity.Steps(); len(steps) != 1 { // restore
		t.Errorf("%v", steps)
	}
}

// Sessions are listed and ended, by one and all.
func TestSessions(t *testing.T) {
	r := opstest.New(t, nil)
	for n := range 3 {
		r.Identity.SignIn("alice", fmt.Sprintf("ses_%d", n))
	}
	c := adminv1connect.NewSessionAdminServiceClient(as(t, r, auth.Moderator), "http://"+r.Addr)
	list := func() (ids string) {
		t.Helper()
		res, err := c.ListSessions(t.Context(), &adminv1.ListSessionsRequest{UserId: "alice"})
		testkit.Must(t, err)
		for _, s := range res.GetSessions() {
			ids += s.GetSessionId() + " "
		}
		return ids
	}
	end := func(session string, execute bool) error {
		_, err := c.EndSession(t.Context(), &adminv1.EndSessionRequest{UserId: "alice", SessionId: session, Reason: "stolen",
			Execute: execute})
		return err
	}
	wantReason(t, "dry run", end("ses_9", false), "SESSION_NOT_FOUND")
	wantReason(t, "another's", end("ses_9", true), "SESSION_NOT_FOUND")
	testkit.Must(t, end("ses_1", false))
	testkit.Equal(t, "after a dry run", list(), "ses_0 ses_1 ses_2 ")
	testkit.Must(t, end("ses_1", true))
	testkit.Equal(t, "after one", list(), "ses_0 ses_2 ")
	for _, execute := range []bool{false, true} {
		res, err := c.EndAllSessions(t.Context(),
			&adminv1.EndAllSessionsRequest{UserId: "alice", Reason: "stolen", Execute: execute})
		testkit.Must(t, err)
		testkit.Equal(t, "sessions found", res.GetSessions(), 2)
	}
	testkit.Equal(t, "after all", list(), "")
	if got := records(t, r, &adminv1.AuditFilter{Target: "user/alice"}); len(got) != 3 { // dry runs have none
		t.Errorf("%v", got)
	}
}

// A chat shows who is in it to everybody, and what was written for a reason that is on record
// before it is shown.
func TestChats(t *testing.T) {
	r := opstest.New(t, nil)
	id := r.Chat(5)
	viewer := adminv1connect.NewChatAdminServiceClient(as(t, r, auth.Viewer), "http://"+r.Addr)
	got, err := viewer.GetChat(t.Context(), &adminv1.GetChatRequest{ChatId: id})
	testkit.Must(t, err)
	if c := got.GetChat(); c.GetCreatedBy() != "alice" || c.GetMembers() != 2 || c.GetSequence() != 5 ||
		c.GetLastMessageAt() == nil || c.GetType().String() != "CHAT_TYPE_GROUP" || strings.Contains(c.String(), "Tea") {
		t.Errorf("%v", c)
	}
	members, err := viewer.ListChatMembers(t.Context(), &adminv1.ListChatMembersRequest{ChatId: id})
	testkit.Must(t, err)
	who := ""
	for _, m := range members.GetMembers() {
		who += m.GetUserId() + " " + m.GetRole().String() + "; "
	}
	testkit.Equal(t, "members", who, "alice MEMBER_ROLE_OWNER; bob MEMBER_ROLE_MEMBER; ")

	c := adminv1connect.NewChatAdminServiceClient(as(t, r, auth.Moderator), "http://"+r.Addr)
	read := func(from int64, limit int32) (sequences []int64) {
		t.Helper()
		res, err := c.ReadMessages(t.Context(),
			&adminv1.ReadMessagesRequest{ChatId: id, Reason: "case 17", FromSequence: from, Limit: limit})
		testkit.Must(t, err)
		for _, m := range res.GetMessages() {
			sequences = append(sequences, m.GetSequence())
			if m.GetSenderId() != "alice" || !strings.HasPrefix(m.GetContent(), opstest.Secret) || m.GetCreatedAt() == nil {
				t.Errorf("%v", m)
			}
		}
		return sequences
	}
	for want, got := range map[string][]int64{"[1 2 3 4 5]": read(0, 0), "[4 5]": read(0, 2), "[2 3]": read(2, 2),
		"[5]": read(5, 9), "[]": read(6, 9)} {
		testkit.Equal(t, "messages", fmt.Sprint(got), want)
	}
	_, err = c.ReadMessages(t.Context(), &adminv1.ReadMessagesRequest{ChatId: id})
	wantReason(t, "no reason", err, "INVALID_ARGUMENT")
	missing := "chat_01ARZ3NDEKTSV4RRFFQ69G5FZZ"
	_, err = c.ReadMessages(t.Context(), &adminv1.ReadMessagesRequest{ChatId: missing, Reason: "case 17"})
	wantReason(t, "missing", err, "CHAT_NOT_FOUND")
	_, err = viewer.ListChatMembers(t.Context(), &adminv1.ListChatMembersRequest{ChatId: missing})
	wantReason(t, "members of a missing chat", err, "CHAT_NOT_FOUND")
	list := records(t, r, &adminv1.AuditFilter{Target: "chat/" + id})
	if len(list) != 5 {
		t.Fatalf("%d records of 5 reads with a reason", len(list))
	}
	for _, one := range list {
		if !strings.Contains(one.GetRequest(), "case 17") || strings.Contains(one.String(), opstest.Secret) {
			t.Errorf("%v", one)
		}
	}

	// Without a record nothing is shown.
	testkit.Must(t, r.Store.Close())
	_, err = c.ReadMessages(t.Context(), &adminv1.ReadMessagesRequest{ChatId: id, Reason: "case 17"})
	wantReason(t, "no record", err, "DRAINING")
}

// A service account has keys that are shown once: what authenticates is in no record and no
// log.
func TestServiceAccounts(t *testing.T) {
	r := opstest.New(t, nil)
	c := adminv1connect.NewServiceAccountAdminServiceClient(as(t, r, auth.Admin), "http://"+r.Addr)
	_, err := c.CreateServiceAccount(t.Context(),
		&adminv1.CreateServiceAccountRequest{Description: "a bot", Scopes: []string{"everything"}})
	wantReason(t, "no such scope", err, "INVALID_ARGUMENT")
	dry, err := c.CreateServiceAccount(t.Context(),
		&adminv1.CreateServiceAccountRequest{Description: "a bot", Scopes: []string{"messages.send"}})
	testkit.Must(t, err)
	if dry.GetServiceAccount().GetServiceId() != "" || len(r.Identity.Steps()) > 0 {
		t.Fatalf("%v", dry)
	}
	made, err := c.CreateServiceAccount(t.Context(),
		&adminv1.CreateServiceAccountRequest{Description: "a bot", Scopes: []string{"messages.send"}, Execute: true})
	testkit.Must(t, err)
	id := made.GetServiceAccount().GetServiceId()
	testkit.Equal(t, "maker", made.GetServiceAccount().GetCreatedBy(), "ada")
	none, err := c.CreateServiceKey(t.Context(), &adminv1.CreateServiceKeyRequest{ServiceId: id})
	testkit.Must(t, err)
	key, err := c.CreateServiceKey(t.Context(), &adminv1.CreateServiceKeyRequest{ServiceId: id, Execute: true})
	testkit.Must(t, err)
	if none.GetKey() != nil || key.GetSecret() != opstest.ServiceSecret {
		t.Fatalf("%v, %v", none, key)
	}
	for _, name := range []string{id, "svc-9"} {
		for _, execute := range []bool{false, true} {
			want := map[bool]string{true: "SERVICE_KEY_NOT_FOUND", false: "SERVICE_NOT_FOUND"}[name == id]
			if execute && name != id {
				want = "SERVICE_KEY_NOT_FOUND"
			}
			_, err = c.RevokeServiceKey(t.Context(), &adminv1.RevokeServiceKeyRequest{ServiceId: name, KeyId: "key_9",
				Reason: "stolen", Execute: execute})
			wantReason(t, "no key of "+name, err, want)
		}
	}
	_, err = c.RevokeServiceKey(t.Context(), &adminv1.RevokeServiceKeyRequest{ServiceId: id,
		KeyId: key.GetKey().GetKeyId(), Reason: "stolen", Execute: true})
	testkit.Must(t, err)
	off, err := c.DisableServiceAccount(t.Context(),
		&adminv1.DisableServiceAccountRequest{ServiceId: id, Reason: "unused", Execute: true})
	testkit.Must(t, err)
	shown, err := c.GetServiceAccount(t.Context(), &adminv1.GetServiceAccountRequest{ServiceId: id})
	testkit.Must(t, err)
	list, err := c.ListServiceAccounts(t.Context(), &adminv1.ListServiceAccountsRequest{PageSize: 1})
	testkit.Must(t, err)
	if !off.GetServiceAccount().GetDisabled() || len(shown.GetKeys()) != 1 || !shown.GetKeys()[0].GetRevoked() ||
		len(list.GetServiceAccounts()) != 1 || list.GetNextPageToken() != "" {
		t.Errorf("%v, %v, %v", off, shown, list)
	}
	kept := fmt.Sprint(records(t, r, &adminv1.AuditFilter{Target: "service/" + id}))
	if strings.Contains(kept, opstest.ServiceSecret) || !strings.Contains(kept, key.GetKey().GetKeyId()) {
		t.Errorf("the records are %s", kept)
	}
	if strings.Contains(r.Log.String(), opstest.ServiceSecret) {
		t.Error("the log has what authenticates")
	}
}

// Limits are shown, and what somebody has left.
func TestLimits(t *testing.T) {
	r := opstest.New(t, nil)
	c := adminv1connect.NewLimitAdminServiceClient(as(t, r, auth.Viewer), "http://"+r.Addr)
	all, err := c.ListLimits(t.Context(), &adminv1.ListLimitsRequest{})
	testkit.Must(t, err)
	if l := all.GetLimits(); len(l) != 2 || !all.GetSharedAway() || l[0].GetBurst() != 60 || !l[1].GetFailsClosed() ||
		l[1].GetPeriod().AsDuration() != 24*time.Hour {
		t.Errorf("%v", all)
	}
	left, err := c.GetLimitState(t.Context(), &adminv1.GetLimitStateRequest{Limit: "send", Key: "alice"})
	testkit.Must(t, err)
	if left.GetRemaining() != 0 || left.GetRetryAfter().AsDuration() != 1500*time.Millisecond {
		t.Errorf("%v", left)
	}
	_, err = c.GetLimitState(t.Context(), &adminv1.GetLimitStateRequest{Limit: "x", Key: "alice"})
	wantReason(t, "no limit", err, "LIMIT_NOT_FOUND")
}

// What a process does not have it does not serve.
func TestMissingParts(t *testing.T) {
	parts := (&opstest.Identity{}).Parts()
	for want, p := range map[string]admin.Parts{
		"ChatAdminService AuditService": {},
		"ChatAdminService AuditService UserAdminService SessionAdminService": {Users: parts.Users,
			Sessions: parts.Sessions},
		"ChatAdminService AuditService SessionAdminService":        {Sessions: parts.Sessions},
		"ChatAdminService AuditService ServiceAccountAdminService": {Services: parts.Services},
		"ChatAdminService AuditService LimitAdminService":          {Limits: parts.Limits},
	} {
		list, err := adminapi.Handlers(adminapi.Config{Store: storetest.NewMemory(time.Now), Clock: time.Now, Parts: p})
		testkit.Must(t, err)
		var names []string
		for _, h := range list {
			path, _ := h()
			names = append(names, strings.Trim(strings.TrimPrefix(path, "/parley.admin.v1."), "/"))
		}
		testkit.Equal(t, "services", strings.Join(names, " "), want)
	}
	if _, err := adminapi.Handlers(adminapi.Config{Parts: admin.Parts{Users: parts.Users}}); err == nil {
		t.Error("users without a revoker: a suspended user's tokens stay good")
	}
}
