package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the documented file")

// write makes a file of settings.
func write(t *testing.T, mode os.FileMode, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "parley.env")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func env(list ...string) []string { return list }

// read reads the settings of a program as its command line does.
func read(p Program, args, environ []string) (s Settings, rest []string, err error) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := Declare(p, set)
	if err := set.Parse(args); err != nil {
		return s, nil, flags.ExplainFlag(err)
	}
	s, err = flags.Read(environ)
	return s, set.Args(), err
}

// A flag goes before the environment, that before the file, that before the default. An
// empty value of the environment or the file is none.
func TestPrecedence(t *testing.T) {
	file := write(t, 0o600, "PARLEY_LISTEN=127.0.0.1:3\nPARLEY_LOG_FORMAT=json\nPARLEY_REDIS_PASSWORD=in file\n")
	for _, tt := range []struct {
		args                  []string
		env                   []string
		listen, format, redis string
	}{
		{nil, env(), DefaultListen, "text", ""},
		{[]string{"--config", file}, env(), "127.0.0.1:3", "json", "in file"},
		{nil, env("PARLEY_CONFIG=" + file), "127.0.0.1:3", "json", "in file"},
		{[]string{"--config", ""}, env("PARLEY_CONFIG=" + file), DefaultListen, "text", ""},
		{[]string{"--config=" + file}, env("PARLEY_LISTEN=:2", "PARLEY_LOG_FORMAT=", "PARLEY_REDIS_PASSWORD=in environment"),
			":2", "json", "in environment"},
		{[]string{"--config", file, "--listen", ":1", "--log-format=text", "token", "x"}, env("PARLEY_LISTEN=:2"), ":1",
			"text", "in file"},
	} {
		v, rest, err := read(Server, tt.args, tt.env)
		if err != nil {
			t.Errorf("%v: %v", tt.args, err)
			continue
		}
		if got := []string{v.Listen, v.LogFormat, v.Redis.Password.Reveal()}; fmt.Sprint(got) != fmt.Sprint(
			[]string{tt.listen, tt.format, tt.redis}) {
			t.Errorf("%v: %q", tt.args, got)
		}
		if want := len(tt.args) > 4; want != (len(rest) == 2) {
			t.Errorf("%v leaves %q", tt.args, rest)
		}
	}
}

// What is wrong is reported in one line that says where it is, without values of
// secrets or of lines that may hold one.
func TestWrong(t *testing.T) {
	for says, tt := range map[string]struct {
		file string
		env  string
		args []string
	}{
		"parley.env:2: there is no setting PARLEY_LISTN": {
			file: "# a comment\nPARLEY_LISTN=:1\n"},
		"parley.env:1: there is no setting PARLEY_CONFIG": {
			file: "PARLEY_CONFIG=x\n"},
		"parley.env:3: PARLEY_STORE stands at ": {
			file: "PARLEY_STORE=dynamodb\n\nPARLEY_STORE=embedded"},
		"parley.env:1: not NAME=value": {
			file: "hunter2\n"},
		"parley.env:2: not NAME=value": {
			file: "\nexport PARLEY_REDIS_PASSWORD=hunter2\n"},
		"parley.env:1: a quotation that is not closed": {
			file: "PARLEY_REDIS_PASSWORD=\"hunter2\n"},
		"parley.env:1: a quotation that is not closed at": {
			file: "PARLEY_REDIS_PASSWORD='hunter2' # mine\n"},
		"has more than 65536 bytes": {
			file: strings.Repeat("#\n", maxFile)},
		"listen must be host:port, not \"8080\" (": {
			file: "PARLEY_LISTEN=8080"},
		"listen must be host:port, not \"x\" (PARLEY_LISTEN)": {
			env: "PARLEY_LISTEN=x"},
		"listen must be host:port, not \"y\"": {
			env: "PARLEY_LISTEN=x", args: []string{"--listen", "y"}},
		"link-address must be host:port": {
			env: "PARLEY_LINK_ADDRESS=h"},
		"log-format must be text or json, not \"xml\"": {
			args: []string{"--log-format", "xml"}},
		"kafka-sasl must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, not": {
			env: "PARLEY_KAFKA_SASL=GSSAPI"},
		"data-dir must not be empty": {
			args: []string{"--data-dir", ""}},
		"redis must be one line": {
			env: "PARLEY_REDIS=redis://h\nhunter2"},
		"PARLEY_REDIS_PASSWORD must have at most 4096 bytes (PARLEY_REDIS_": {
			env: "PARLEY_REDIS_PASSWORD=" + strings.Repeat("hunter2", 1000)},
		"there is no setting PARLEY_LISTN in the environment (did you mean PARLEY_LISTEN?)": {
			env: "PARLEY_LISTN=hunter2"},
		"there is no setting PARLEY_KAFKA_PASWORD in the environment (did you mean PARLEY_KAFKA_PASSWORD?)": {
			env: "PARLEY_KAFKA_PASWORD=hunter2"},
		"there is no setting PARLEY_TYPO in the environment": {
			env: "PARLEY_TYPO=1"},
		"there is no setting PARLEY_REDIS_PORT in": {
			env: "PARLEY_REDIS_PORT=6379"},
		"parley.env:1: there is no setting PARLEY_STOR (did you mean PARLEY_STORE?)": {
			file: "PARLEY_STOR=1\n"},
		"not defined: -listn (did you mean --listen?)": {
			args: []string{"--listn", "x"}},
		"not defined: -redis-password; others could see it there: set PARLEY_REDIS_PASSWORD": {
			args: []string{"--redis-password=hunter2"}},
		"web-origins must name each origin: with *": {
			args: []string{"--web-origins", "*"}},
		"web-origins must name each origin: with * any page": {
			args: []string{"--web-origins", "https://*.example.com"}},
		"web-origins must be origins, without a path: https://x.example, not": {
			env: "PARLEY_WEB_ORIGINS=https://x.example/"},
		"web-origins must be origins, without a path: https://y.example, not": {
			env: "PARLEY_WEB_ORIGINS=https://y.example?x"},
		"web-origins must be origins such as https://chat.example.com or": {
			env: "PARLEY_WEB_ORIGINS=chat.example.com"},
		"local or none, not \"null\"": {
			env: "PARLEY_WEB_ORIGINS=local,null"},
		"local or none, not \"\"": {
			env: "PARLEY_WEB_ORIGINS=local,"},
		"local or none, not \"none\"": {
			env: "PARLEY_WEB_ORIGINS=local,none"},
		"local or none, not \"ftp://x\"": {
			env: "PARLEY_WEB_ORIGINS=ftp://x"},
		"local or none, not \"https://x:99999\"": {
			env: "PARLEY_WEB_ORIGINS=https://x:99999"},
		"local or none, not \"https://u:hidden@x\"": {
			env: "PARLEY_WEB_ORIGINS=https://u:hidden@x"},
		"hosts as browsers send them (xn--…), not \"https://bücher.example\"": {
			env: "PARLEY_WEB_ORIGINS=https://bücher.example"},
		"demo-users must be on or off, not \"no\" (PARLEY_DEMO_USERS)": {
			env: "PARLEY_DEMO_USERS=no"},
		"not defined: -redis-password": {
			args: []string{"--redis-password", "hunter2"}},
		"needs an argument: -listen": {
			args: []string{"--listen"}},
		"no such file": {
			args: []string{"--config", "/nowhere/parley.env"}},
		"is a directory": {
			args: []string{"--config", "/"}},
	} {
		if runtime.GOOS == "windows" && strings.Contains(fmt.Sprint(tt.args), "--config") {
			continue // it has its own words
		}
		args := tt.args
		if tt.file != "" {
			args = append([]string{"--config", write(t, 0o600, tt.file)}, args...)
		}
		_, _, err := read(Server, args, env(tt.env))
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), "hunter") {
			t.Errorf("%q: %v", says, err)
		}
	}
}

// What the environment may hold besides: settings of the other program, those without a
// value, what tests and tools set, and what Kubernetes makes of services whose names begin
// with "parley".
func TestEnvironment(t *testing.T) {
	v, _, err := read(Server, nil, env("PARLEY_RELAY_SLOTS=no number", "PARLEY_TYPO=", "MY_PARLEY_TYPO=1", "PARLEY=1",
		"parley_typo=1",
		"PARLEY_SERVICE_HOST=10.0.0.1", "PARLEY_SERVICE_PORT=80", "PARLEY_SERVICE_PORT_HTTP=80",
		"PARLEY_PORT=tcp://10.0.0.1:80",
		"PARLEY_PORT_80_TCP=tcp://10.0.0.1:80", "PARLEY_PORT_80_TCP_ADDR=10.0.0.1", "PARLEY_REDIS_PORT=tcp://10.0.0.2:6379",
		"PARLEY_REDIS_SERVICE_HOST=10.0.0.2", "PARLEY_REDIS_PORT_6379_TCP_PROTO=tcp", "PARLEY_TEST_KAFKA=h:1",
		"PARLEY_LISTEN=:2", "PARLEY_LISTEN=:3"))
	if err != nil || v.Listen != ":2" || v.Redis.URL != "" {
		t.Fatal(v, err)
	}
}

// Names with our prefix that the project's own tests, scripts and documents use are
// settings or excepted: else the programs that they start would end with one line.
func TestNamesInUse(t *testing.T) {
	cmd := exec.Command("git", "grep", "-hoE",
		`(Getenv|LookupEnv|Setenv)\("PARLEY_[A-Z_]+|env\.PARLEY_[A-Z_]+|PARLEY_[A-Z_]+=[^"]`, "--", "server", "workers",
		"schemacheck", ".tools", ".ci", ".github", "justfile", ":!server/infra/config")
	cmd.Dir = "../../.."
	out, err := cmd.Output()
	if err != nil {
		t.Skip("no git, or a copy without it: ", err)
	}
	found := regexp.MustCompile(`PARLEY_[A-Z_]+`).FindAllString(string(out), -1)
	if len(found) < 20 {
		t.Fatalf("found %q", found)
	}
	for _, name := range found {
		if _, err := readEnviron([]string{name + "=x"}); err != nil && name != "PARLEY_LISTN" {
			t.Errorf("%s is set somewhere: %v", name, err)
		}
	}
}

// The file is read as systemd would: spaces around names and values do not count,
// quotations keep theirs, and what is the other program's is left to it.
func TestFile(t *testing.T) {
	lines, err := parseFile("f", []byte(
		"\r\n  # PARLEY_STORE=x\nPARLEY_LISTEN = :1 \r\nPARLEY_REDIS=\"a b \"\nPARLEY_REDIS_PASSWORD='#\"=x'\nPARLEY_RELAY_SLOTS=2\nPARLEY_STORE=\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]line{
		"PARLEY_LISTEN": {":1", "f:3"}, "PARLEY_REDIS": {"a b ", "f:4"}, "PARLEY_REDIS_PASSWORD": {`#"=x`, "f:5"},
		"PARLEY_RELAY_SLOTS": {"2", "f:6"}, "PARLEY_STORE": {"", "f:7"},
	}
	if fmt.Sprint(lines) != fmt.Sprint(want) {
		t.Errorf("%v", lines)
	}
	file := write(t, 0o600, "PARLEY_RELAY_SLOTS=no number\n")
	if _, _, err := read(Server, []string{"--config", file}, env()); err != nil {
		t.Errorf("a setting of workers is in the server's way: %v", err)
	}
	if _, _, err := read(Workers, []string{"--config", file}, env()); err == nil {
		t.Error("workers took it")
	}
}

// A file with secrets that others may read is warned of.
func TestPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes")
	}
	for _, tt := range []struct {
		mode os.FileMode
		text string
		warn int
	}{{0o600, "PARLEY_REDIS_PASSWORD=hunter2", 0}, {0o644, "PARLEY_REDIS_PASSWORD=hunter2", 1},
		{0o644, "PARLEY_REDIS_PASSWORD=\nPARLEY_LISTEN=:1", 0}} {
		path := write(t, 0o600, tt.text)
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		v, _, err := read(Server, []string{"--config", path}, env())
		if err != nil || len(v.Warnings) != tt.warn || strings.Contains(fmt.Sprint(v.Warnings), "hunter") {
			t.Errorf("%v %q: %q, %v", tt.mode, tt.text, v.Warnings, err)
		}
	}
}

// A secret does not come out by accident (S-38).
func TestSecret(t *testing.T) {
	s := Secret("hunter2")
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s, "in", struct{ S Secret }{s})
	asJSON, err := json.Marshal(map[string]any{"s": s})
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprintf("%s %v %+v %#v %q %x %s %s", s, s, struct{ S Secret }{s}, struct{ S Secret }{s}, s, s, log.String(),
		asJSON)
	if strings.Contains(all, "hunter2") || strings.Contains(all, fmt.Sprintf("%x", "hunter2")) || s.Reveal() != "hunter2" {
		t.Error(all)
	}
}

// The documented file has every setting, says what --help says, and changes nothing when
// all of it is taken.
func TestDocument(t *testing.T) {
	path := filepath.Join("..", "..", "deploy", "parley.env")
	if *update {
		if err := os.WriteFile(path, []byte(Document()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != Document() {
		t.Fatalf("%s is not what the table says; write it with: go test ./server/infra/config -update", path)
	}
	all := regexp.MustCompile(`(?m)^#(PARLEY_)`).ReplaceAll(have, []byte("$1"))
	lines, err := parseFile(path, all)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != len(table)-1 {
		t.Errorf("%d settings are documented, %d declared", len(lines), len(table)-1)
	}
	for _, p := range []Program{Server, Workers} {
		var help bytes.Buffer
		PrintFlags(&help, p)
		plain, _, err := read(p, nil, env())
		if err != nil {
			t.Fatal(err)
		}
		full, _, err := read(p, []string{"--config", write(t, 0o600, string(all))}, env())
		if err != nil {
			t.Fatal(err)
		}
		if plain.Store = "embedded"; !reflect.DeepEqual(plain, full) { // for which workers have a default of their own
			t.Errorf("%+v by default, %+v with the documented file", plain, full)
		}
		flags := map[string]bool{}
		for _, s := range Table(p) {
			if !strings.Contains(help.String(), s.Name) {
				t.Errorf("--help lacks %s", s.Name)
			}
			if s.Secret != (s.Flag == "") || flags[s.Flag] && !s.Secret || s.Help == "" || strings.Contains(s.Help, "\n") {
				t.Errorf("%+v", s)
			}
			flags[s.Flag] = true
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte("PARLEY_LISTEN=:1\n# x\nPARLEY_REDIS='a'\n"))
	f.Add([]byte(Document()))
	f.Fuzz(func(t *testing.T, text []byte) {
		lines, err := parseFile("f", text)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("%q", err)
		}
		for name, l := range lines {
			if !isSetting(name) || strings.Contains(l.value, "\n") {
				t.Fatalf("%q: %q", name, l)
			}
		}
	})
}
