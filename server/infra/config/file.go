package config

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// maxFile bounds the file of settings, in bytes.
const maxFile = 64 << 10

// line is a setting in the file, and where it stands.
type line struct{ value, at string }

var assignment = regexp.MustCompile(`^([A-Z][A-Z0-9_]*)\s*=\s*(.*)$`)

// readFile reads a file of settings: lines NAME=value, comments with # at the beginning
// of a line, values in quotes or not, as systemd reads an EnvironmentFile. One file may
// hold the settings of all programs.
func readFile(path string) (lines map[string]line, warnings []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	info, err := f.Stat() // of the file that is read, even if its name changes meanwhile
	if err != nil {
		return nil, nil, fmt.Errorf("config: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, nil, fmt.Errorf("config: %w", err)
	}
	if len(text) > maxFile {
		return nil, nil, fmt.Errorf("config: %s has more than %d bytes", path, maxFile)
	}
	lines, err = parseFile(path, text)
	if err != nil {
		return nil, nil, fmt.Errorf("config: %w", err)
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		for _, s := range table {
			if lines[s.Name].value != "" && s.Secret {
				warnings = append(warnings, fmt.Sprintf("%s: others may read the secrets in it (mode %#o); make it 0600", path,
					mode))
				break
			}
		}
	}
	return lines, warnings, nil
}

// fileNames lists the settings that a file may hold.
func fileNames() []string {
	return slices.DeleteFunc(names(), func(s string) bool { return s == fileSetting })
}

// parseFile reads the text of a file. Errors name the line and do not show values: a
// secret may stand in them.
func parseFile(path string, text []byte) (map[string]line, error) {
	lines := map[string]line{}
	sc := bufio.NewScanner(bytes.NewReader(text))
	sc.Buffer(nil, maxFile+1)
	for n := 1; sc.Scan(); n++ {
		at := fmt.Sprintf("%s:%d", path, n)
		s := strings.TrimSpace(sc.Text())
		if s == "" || s[0] == '#' {
			continue
		}
		m := assignment.FindStringSubmatch(s)
		if m == nil {
			return nil, fmt.Errorf("%s: not NAME=value", at)
		}
		name, value := m[1], m[2]
		if !isSetting(name) || name == fileSetting {
			return nil, fmt.Errorf("%s: there is no setting %.80s%s", at, name, suggestion(name, fileNames()))
		}
		if before, ok := lines[name]; ok {
			return nil, fmt.Errorf("%s: %s stands at %s already", at, name, before.at)
		}
		if value != "" && (value[0] == '"' || value[0] == '\'') {
			if len(value) < 2 || value[len(value)-1] != value[0] || strings.IndexByte(value[1:len(value)-1], value[0]) >= 0 {
				return nil, fmt.Errorf("%s: a quotation that is not closed at the end of the line", at)
			}
			value = value[1 : len(value)-1]
		}
		lines[name] = line{value, at}
	}
	return lines, sc.Err()
}
