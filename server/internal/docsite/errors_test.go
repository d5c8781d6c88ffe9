package docsite

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/infra/rpc"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/authapi"
	"github.com/parley-chat/parley/server/internal/rest"
	"github.com/parley-chat/parley/server/internal/serviceapi"
	"github.com/parley-chat/parley/server/internal/topicrpc"
	"github.com/parley-chat/parley/server/internal/userapi"
)

var update = flag.Bool("update", false, "write the tables of errors into their document")

const errorsPage = root + "/server/docs/errors.md"

// depends says what the text of a reason says where it depends on the request.
var depends = map[string]string{
	"FORBIDDEN":        "the text names what belongs to another user",
	"INVALID_ARGUMENT": "the request can never be right; text and `BadRequest` name the fields",
	"USER_NOT_FOUND":   "the text names the unknown user",
	"TOO_MANY_CHATS":   "the text names the user with too many chats, and says how many are allowed",
	"TOO_LARGE":        "the text says how large what was sent may be",
}

// bare are statuses of calls that are refused before their protocol is known.
var bare = map[string]int{"METHOD_NOT_ALLOWED": 405, "NO_SUCH_PROCEDURE": 404, "UNSUPPORTED_MEDIA_TYPE": 415}

// explained is what the page on topics says of reasons.
func explained(t *testing.T) map[string]string {
	t.Helper()
	_, table, ok := strings.Cut(string(testkit.Value(os.ReadFile(root+"/server/docs/topics.md"))(t)), "\n## Errors\n")
	if !ok {
		t.Fatal("the page on topics has no errors")
	}
	out := map[string]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			for name := range strings.SplitSeq(cells[1], ",") {
				out[strings.Trim(name, " `")] = strings.TrimSpace(cells[3])
			}
		}
	}
	return out
}

// front are refusals before a call is checked, with their HTTP status in every protocol but gRPC.
var front = []string{
	"| `HEADERS_TOO_LARGE` | resource_exhausted | 431 | | the request's headers are larger than the text says |",
	"| `HOST_NOT_ALLOWED` | invalid_argument | 421 | | the server is not called by this name: `--allowed-hosts` |",
	"| `NO_SUCH_PATH` | not_found | 404 | | REST: there is no such path |",
	"| `TOO_MANY_REQUESTS` | resource_exhausted | 429 | after 1 s | this client address has too many requests under way |",
}

// tableOf is a table of refusals, a row for each reason with a code.
func tableOf(all []rpc.Refusal, explained map[string]string, more ...string) string {
	type key struct{ reason, code string }
	texts, rows := map[key][]string{}, slices.Clone(more)
	retries, codes := map[key]time.Duration{}, map[key]connect.Code{}
	for _, r := range all {
		k := key{r.Reason, r.Code.String()}
		text := cmp.Or(r.Text, explained[r.Reason])
		if !slices.Contains(texts[k], text) {
			texts[k] = append(texts[k], text)
		}
		if text == "" {
			panic("nothing explains " + r.Reason)
		}
		retries[k], codes[k] = max(retries[k], r.Retry), r.Code
	}
	for k, said := range texts {
		retry := ""
		if retries[k] > 0 {
			retry = "after " + strings.ReplaceAll(retries[k].String(), "s", " s")
		}
		slices.Sort(said)
		cells := fmt.Sprintf("| `%s` | %s | %d | %s | %s |", k.reason, k.code,
			cmp.Or(bare[k.reason], rest.Status(codes[k], k.reason)), retry,
			strings.NewReplacer("|", `\|`, "<", `\<`).Replace(strings.Join(said, "; ")))
		rows = append(rows, strings.ReplaceAll(cells, "|  |", "| |"))
	}
	slices.Sort(rows)
	return "| reason | code | HTTP | again | what happened |\n|---|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n"
}

// The tables of errors are those of the server.
func TestTablesOfErrors(t *testing.T) {
	page := string(testkit.Value(os.ReadFile(errorsPage))(t))
	for section, table := range map[string]string{
		"Every call, and chats": tableOf(api.Reasons(), depends, front...),
		"Durable topics":        tableOf(topicrpc.Reasons(), explained(t)),
		"Search events":         tableOf(api.AnalyticsRefusals.All(), depends),
		"Signing in":            tableOf(authapi.Refusals.All(), depends),
		"People":                tableOf(userapi.Refusals.All(), depends),
		"Back ends":             tableOf(serviceapi.Refusals.All(), depends),
	} {
		at := strings.Index(page, "\n## "+section+"\n")
		if at < 0 {
			t.Fatalf("no section %s", section)
		}
		from := at + strings.Index(page[at:], "\n| reason |") + 1
		to := from + strings.Index(page[from:]+"\n\n", "\n\n") + 1
		if to > len(page) {
			to = len(page)
		}
		if *update {
			page = page[:from] + table + page[to:]
		} else if page[from:to] != table {
			t.Errorf("%s: go test ./server/internal/docsite -run Errors -update; want\n%s", section, table)
		}
	}
	if *update {
		testkit.Must(t, os.WriteFile(errorsPage, []byte(page), 0o600))
	}
}

// The page lists every reason in the source of a service.
func TestEachReasonOfTheSourceIsOnThePage(t *testing.T) {
	page := string(testkit.Value(os.ReadFile(errorsPage))(t))
	name := regexp.MustCompile(`^[A-Z]{2,}(_[A-Z]+)+$`)
	frames := []string{"RST_STREAM", "PUSH_PROMISE", "WINDOW_UPDATE"} // of HTTP/2, in package edge
	found := map[string]bool{}
	for _, dir := range []string{"internal/api", "internal/rest", "internal/topicrpc",
		"internal/authapi", "internal/userapi", "internal/serviceapi", "infra/edge", "topic/refusal"} {
		sources := testkit.Value(filepath.Glob(root + "/server/" + dir + "/*.go"))(t)
		if len(sources) == 0 {
			t.Errorf("%s has no source", dir)
		}
		for _, source := range sources {
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			ast.Inspect(testkit.Value(parser.ParseFile(token.NewFileSet(), source, nil, 0))(t), func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if s, _ := strconv.Unquote(lit.Value); name.MatchString(s) && !slices.Contains(frames, s) {
						found[s] = true
					}
				}
				return true
			})
		}
	}
	for reason := range found {
		if !strings.Contains(page, "| `"+reason+"` |") {
			t.Errorf("%s is not on the page", reason)
		}
	}
	if len(found) < 40 {
		t.Errorf("only %d reasons found", len(found))
	}
}
