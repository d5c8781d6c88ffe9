package topicrpc

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// reasons are the reasons that package refusal declares.
func reasons(t *testing.T) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../topic/refusal/refusal.go", nil, 0)
	must(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Reason" {
			t.Errorf("%v is no Reason", spec.Names)
		}
		for _, v := range spec.Values {
			text, ok := v.(*ast.BasicLit)
			if !ok {
				t.Fatalf("%v is no literal", spec.Names)
			}
			name, err := strconv.Unquote(text.Value)
			must(t, err)
			all = append(all, name)
		}
		return true
	})
	return all
}

// documented are the codes by reason in the table of the page on topics.
func documented(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/topics.md")
	must(t, err)
	_, errs, ok := strings.Cut(string(page), "\n## Errors\n")
	if !ok {
		t.Fatal("the page has no section on errors")
	}
	out := map[string]string{}
	for line := range strings.Lines(errs) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		code, _, _ := strings.Cut(strings.TrimSpace(cells[2]), ";")
		for name := range strings.SplitSeq(cells[1], ",") {
			out[strings.Trim(name, " `")] = code
		}
	}
	return out
}

// Each reason for a refusal has the code that clients know, under its own name, and a
// row on the page on topics.
func TestEachReasonHasItsCode(t *testing.T) {
	t.Parallel()
	contract := map[string]string{
		"TOPIC_NOT_FOUND":         "not_found",
		"TOPIC_FORBIDDEN":         "permission_denied",
		"TOPIC_READ_ONLY":         "failed_precondition",
		"TOPIC_EXISTS":            "aborted",
		"LAST_ADMIN":              "failed_precondition",
		"NO_SUBSCRIPTIONS":        "failed_precondition",
		"TOPIC_FULL":              "resource_exhausted",
		"STORAGE_LOW":             "resource_exhausted",
		"NOT_ACTIVE":              "failed_precondition",
		"SUBSCRIPTION_GONE":       "failed_precondition",
		"SUBSCRIPTION_NOT_FOUND":  "not_found",
		"INVALID_TRANSITION":      "failed_precondition",
		"MEMBER_EXISTS":           "already_exists",
		"SESSION_GONE":            "not_found",
		"GROUP_PUSHED":            "failed_precondition",
		"PRODUCER_NUMBER_TOO_OLD": "failed_precondition",
		"PRODUCER_NUMBER_REUSED":  "failed_precondition",
		"DEDUPLICATION_ID_REUSED": "failed_precondition",
		"MESSAGE_NOT_FOUND":       "not_found",
		"POSITION_OUT_OF_RANGE":   "out_of_range",
		"TOO_LARGE":               "resource_exhausted",
		"INVALID_FILTER":          "invalid_argument",
		"INVALID_ARGUMENT":        "invalid_argument",
		"TOO_MANY":                "resource_exhausted",
		"SCHEMA_NOT_FOUND":        "not_found",
		"SCHEMA_INCOMPATIBLE":     "failed_precondition",
		"SCHEMA_MISMATCH":         "invalid_argument",
		"JOB_RUNNING":             "aborted",
		"OVERLOADED":              "resource_exhausted",
		"NO_OWNER":                "unavailable",
	}
	page := documented(t)
	all := reasons(t)
	testkit.Equal(t, "reasons", len(all), len(contract))
	testkit.Equal(t, "rows", len(table), len(contract))
	for _, name := range all {
		want, ok := contract[name]
		if !ok {
			t.Errorf("%s is not in the contract", name)
			continue
		}
		r := explain(refusal.New(refusal.Reason(name), "what a person reads"))
		if r == nil {
			t.Errorf("%s has no row: clients would get an internal error", name)
			continue
		}
		testkit.Equal(t, name+": code", r.Code.String(), want)
		testkit.Equal(t, name+": name", r.Reason, name)
		testkit.Equal(t, name+": text", r.Text, "what a person reads")
		repeated := name == "OVERLOADED" || name == "NO_OWNER" || name == "STORAGE_LOW"
		testkit.Equal(t, name+": is to be repeated", r.Retry > 0, repeated)
		testkit.Equal(t, name+": on the page", page[name], want)
	}
}

// Each reason for which a stream ends has a code.
func TestEachEndHasItsCode(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]connect.Code{
		"SUBSCRIPTION_GONE": connect.CodeFailedPrecondition,
		"TOPIC_FORBIDDEN":   connect.CodePermissionDenied,
		"DRAINING":          connect.CodeUnavailable,
		"SLOW":              connect.CodeUnavailable,
		"REPLACED":          connect.CodeAborted,
		"TOPIC_DELETED":     connect.CodeNotFound,
		"TOKEN_EXPIRED":     connect.CodeUnauthenticated,
	} {
		r := explain(goneWith(name))
		testkit.Equal(t, name+": code", r.Code, want)
		testkit.Equal(t, name+": name", r.Reason, name)
	}
}
