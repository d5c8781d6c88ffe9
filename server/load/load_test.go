package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/gates/rig"
)

var built = testkit.Program{Name: "server"}

func TestMain(m *testing.M) {
	code := m.Run()
	built.Remove()
	os.Exit(code)
}

// binary returns the path of the server.
func binary(t *testing.T) string {
	t.Helper()
	racetest.SkipProgram(t)
	return built.Path(t)
}

// loadServer starts a server for load tests, and returns the flags by which they find it.
func loadServer(t *testing.T) (dir, addr string) {
	t.Helper()
	program, dir := binary(t), t.TempDir()
	s, err := rig.Start(context.WithoutCancel(t.Context()), program, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return dir, strings.TrimPrefix(s.URL(), "http://")
}

// line runs the program with a line.
func line(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, nil, &out, &errs)
	return code, out.String(), errs.String()
}

// TestLoadScenarios runs each scenario for a moment: everything that is sent arrives, once,
// and the report says so.
func TestLoadScenarios(t *testing.T) {
	t.Parallel()
	dir, addr := loadServer(t)
	short := "--duration=300ms --warmup=100ms --quiet "
	for name, tt := range map[string]struct {
		line  string
		wants map[string]float64 // exact figures; a negative one only has to be there
	}{
		"paced": {"paced --rate=50 --members=3 --rounds=2 " + short,
			map[string]float64{"delivery p99": -1, "begun late p99": -1, "server CPU": -1, "nudges dropped": -1}},
		"paced by gRPC": {"paced --protocol=grpc --rate=50 --members=3 --per-connection=3 --client-ids --chats=2 --users=4 " +
			short,
			map[string]float64{"delivery p50": -1}},
		"closed": {"closed --callers=4 --members=3 " + short, map[string]float64{"delivered": -1, "ack p99": -1}},
		"closed, HTTP/1": {"closed --callers=4 --members=2 --chats=3 --no-streams --http=1 " + short,
			map[string]float64{"ack p99": -1}},
		"receipts": {"receipts --rate=30 --members=3 " + short,
			map[string]float64{"mark p99": -1, "recorded p99": -1, "marks": -1, "mark calls": -1, "receipts": -1}},
		"receipts by calls": {"receipts --mark-every=0 --rate=30 --members=3 " + short,
			map[string]float64{"mark p99": -1, "marks": -1, "receipts": -1}},
		"reads": {"reads --callers=4 --members=3 " + short,
			map[string]float64{"reads": -1, "read p99": -1, "server CPU": -1}},
		"reads, HTTP/1": {"reads --callers=4 --members=2 --chats=2 --http=1 --rounds=2 " + short,
			map[string]float64{"read max": -1}},
		"storm": {"storm --clients=12 --members=3 --per-connection=2 --quiet",
			map[string]float64{"live max": -1, "tried again": 0}},
		"idle": {"idle --clients=6 --duration=200ms --quiet", map[string]float64{"streams": 6, "server cores": -1}},
		"sync": {"sync --clients=6 --chats=4 --members=3 --messages=5 --callers=3 --rounds=2 --quiet",
			map[string]float64{"repeated": 0, "sync p99": -1, "client max": -1}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "report.json")
			args := append([]string{"--data-dir", dir}, strings.Fields(tt.line)...)
			code, stdout, stderr := line(t, append(args, "--addr", addr, "--json", path)...)
			if code != 0 {
				t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
			}
			report, err := figure.Read(path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(tt.line, "reads") {
				tt.wants["missing"] = 0
			}
			for figure, want := range tt.wants {
				got, ok := report.Median.Value(figure)
				if !ok || want >= 0 && got != want {
					t.Errorf("%s is %v (there: %v), want %v", figure, got, ok, want)
				}
			}
			if report.Machine.Disk != dir || report.Machine.FsyncP99 <= 0 || report.Scenario != strings.Fields(tt.line)[0] {
				t.Errorf("report of %s on %+v", report.Scenario, report.Machine)
			}
			if n := strings.Count(tt.line, "--rounds=2"); len(report.Rounds) != n+1 {
				t.Errorf("%d rounds", len(report.Rounds))
			}
		})
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "load-fsync-*")); len(left) > 0 {
		t.Errorf("the data directory keeps %v", left)
	}
}

// TestLoadCompare compares a report with an earlier one, and shows a line each second.
func TestLoadCompare(t *testing.T) {
	t.Parallel()
	dir, addr := loadServer(t)
	path := filepath.Join(t.TempDir(), "earlier.json")
	args := []string{"--data-dir", dir, "paced", "--addr", addr, "--rate=20", "--members=2", "--warmup=0s"}
	if code, stdout, stderr := line(t, append(args, "--duration=200ms", "--json", path)...); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr := line(t, append(args, "--duration=1500ms", "--compare", path)...)
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	for _, want := range []string{"round 1", "beside " + path, "ratio", "not the same options", " × ", "delivery p99.9"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	code, stdout, stderr = line(t, "--data-dir", dir, "closed", "--addr", addr, "--members=2",
		"--duration=100ms", "--warmup=0s", "--compare", path)
	if code != 1 || !strings.Contains(stderr, "the earlier report is of paced, not of closed") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

// TestLoadTokenFile takes users from a file where the server's key is elsewhere.
func TestLoadTokenFile(t *testing.T) {
	t.Parallel()
	dir, addr := loadServer(t)
	key := testkit.Value(auth.ReadKey(filepath.Join(dir, auth.KeyFile)))(t)
	var tokens []string
	for _, name := range []string{"ann", "ben"} {
		tokens = append(tokens, testkit.Value(key.Issue(name, time.Now(), time.Hour))(t))
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(strings.Join(tokens, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--data-dir", t.TempDir(), "paced", "--addr", addr, "--rate=20", "--warmup=0s",
		"--duration=200ms", "--token-file", path}
	if code, stdout, stderr := line(t, append(args, "--members=2")...); code != 0 {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	code, _, stderr := line(t, append(args, "--members=3")...)
	if code != 1 || !strings.Contains(stderr, "has 2 tokens; this needs 3 users") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestLoadMistakes reports what is wrong in one line.
func TestLoadMistakes(t *testing.T) {
	t.Parallel()
	dir, addr := loadServer(t)
	other, _ := loadServer(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		line, dir string
		code      int
		says      string
	}{
		"no scenario":        {line: "", code: 2, says: "needs a scenario"},
		"unknown scenario":   {line: "dance", code: 2, says: `unknown scenario "dance": there are closed, idle`},
		"unknown flag":       {line: "paced --fast", code: 2, says: "fast"},
		"useless flag":       {line: "closed --rate=5", code: 2, says: "closed: unknown flag: --rate"},
		"bad number":         {line: "paced --rate=x", code: 2, says: "rate"},
		"no rate":            {line: "paced --rate=0", code: 2, says: "--rate must be above 0"},
		"no number":          {line: "paced --rate=NaN", code: 2, says: "--rate must be above 0"},
		"too many members":   {line: "paced --members=1001", code: 2, says: "--members must be 2 to 1000"},
		"idle twice":         {line: "idle --rounds=2", code: 2, says: "--rounds must be 1"},
		"few users":          {line: "paced --members=5 --users=4", code: 2, says: "--users must be 5"},
		"few clients":        {line: "storm --clients=5", code: 2, says: "chats of 10 members need as many clients"},
		"small text":         {line: "paced --size=1", code: 2, says: "--size must be 40 to 16384"},
		"no time":            {line: "paced --duration=0s", code: 2, says: "--duration must be above 0"},
		"unknown protocol":   {line: "paced --protocol=soap", code: 2, says: "connect or grpc"},
		"gRPC on HTTP/1":     {line: "paced --protocol=grpc --http=1", code: 2, says: "--http 2"},
		"somebody else's":    {line: "paced --addr=chat.example.com:443", code: 2, says: "--yes-this-is-mine"},
		"no address":         {line: "paced --addr=localhost", code: 2, says: "HOST:PORT"},
		"nobody there":       {line: "paced --addr=127.0.0.1:1", code: 1, says: "is the server running?"},
		"no key":             {line: "paced", dir: t.TempDir(), code: 1, says: "--token-file"},
		"another key":        {line: "paced", dir: other, code: 1, says: "the server refused a token"},
		"no tokens":          {line: "paced --token-file=/nowhere/tokens", code: 1, says: "/nowhere/tokens"},
		"no token":           {line: "paced --token-file=" + file, code: 1, says: "not a JSON Web Token"},
		"no report":          {line: "paced --compare=" + file, code: 1, says: "is no report"},
		"no such report":     {line: "paced --compare=/nowhere/report", code: 1, says: "/nowhere/report"},
		"no certificate":     {line: "paced --addr=https://127.0.0.1:1 --ca=" + file, code: 1, says: "holds no certificate"},
		"no TLS on the port": {line: "paced --addr=https://" + addr, code: 1, says: "tls"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.dir == "" {
				tt.dir = dir
			}
			args := append([]string{"--data-dir", tt.dir, "--listen", addr}, strings.Fields(tt.line)...)
			if !strings.HasSuffix(name, "scenario") {
				args = append(args, "--quiet")
			}
			code, stdout, stderr := line(t, args...)
			if code != tt.code || !strings.Contains(stderr, tt.says) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
			}
		})
	}
}
