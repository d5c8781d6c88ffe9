package streams

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// divisor shortens the times of the server and of the tests. A larger one makes the tests fail
// after shorter pauses of a busy machine.
var divisor = func() time.Duration {
	if testkit.Long() {
		return 1
	}
	return 4
}()

// inTheWay are the packages whose timers a stream meets. Each second and minute in them is
// shortened, so that a new timer is met in a run with short times, too. The night, with the
// real ones, has those of other packages and of libraries.
var inTheWay = []string{
	"infra/edge", "infra/edge/h2", "delivery", "internal/api", "internal/streamwriter", "internal/topicrpc", "topic",
}

// moreInTheWay are files of packages whose other times are not those of streams.
var moreInTheWay = []string{"internal/app/body.go", "internal/app/http.go"}

// figures are the real times, which the tests count on: held is longer than each.
var figures = map[string]string{
	"delivery/hub.go":                 `c\.Heartbeat, 15\*time\.Second\)`,
	"infra/edge/h2/server.go":         `\spingAfter += 20 \* time\.Second[^=]+\spingTime += 10 \* time\.Second`,
	"internal/api/api.go":             `\sheartbeat += 15 \* time\.Second`,
	"internal/app/body.go":            `bodyBounds\{all: 15 \* time\.Second`,
	"internal/streamwriter/writer.go": `const Timeout = 10 \* time\.Second`,
	"internal/topicrpc/server.go":     `const heartbeat = 15 \* time\.Second`,
	"topic/sessions.go":               `\saliveEvery += 15 \* time\.Second`,
}

var unit = regexp.MustCompile(`\btime\.(Second|Minute)\b`)

// shortened writes what go build takes as -overlay: the sources with their times divided.
func shortened(dir string) (string, error) {
	server, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	names := moreInTheWay
	for _, p := range inTheWay {
		found, err := filepath.Glob(filepath.Join(server, p, "*.go"))
		if err != nil {
			return "", err
		}
		for _, path := range found {
			if !strings.HasSuffix(path, "_test.go") {
				names = append(names, filepath.Join(p, filepath.Base(path)))
			}
		}
	}
	replace := map[string]string{}
	seen := 0
	for i, name := range names {
		path := filepath.Join(server, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		if want, ok := figures[filepath.ToSlash(name)]; ok {
			seen++
			if !regexp.MustCompile(want).Match(text) {
				return "", fmt.Errorf("%s has no %s: held and the waits of the tests count on it", name, want)
			}
		}
		short := unit.ReplaceAll(text, fmt.Appendf(nil, "($0 / %d)", divisor))
		if divisor == 1 || string(short) == string(text) {
			continue
		}
		replace[path] = filepath.Join(dir, fmt.Sprint(i, ".go"))
		if err := os.WriteFile(replace[path], short, 0o600); err != nil {
			return "", err
		}
	}
	if seen != len(figures) {
		return "", fmt.Errorf("%d of the files with the figures %v are in the way", seen, figures)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}
