package conformance

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// The files of the set, from the package's directory on.
const (
	Explored = "testdata/explored.jsonl.gz" // devices of the explorer's worlds
	Scripted = "testdata/scripted.jsonl"    // what no world has
)

// maxLine bounds a scenario.
const maxLine = 1 << 20

// Write writes scenarios, one a line, compressed if the name says so.
func Write(name string, list []*Scenario) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	for _, s := range list {
		if err := enc.Encode(s); err != nil {
			return err
		}
	}
	if !strings.HasSuffix(name, ".gz") {
		return os.WriteFile(name, text.Bytes(), 0o600)
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err = z.Write(text.Bytes()); err == nil {
		err = z.Close()
	}
	if err != nil {
		return err
	}
	return os.WriteFile(name, packed.Bytes(), 0o600)
}

// Read reads what Write wrote.
func Read(name string) (list []*Scenario, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, err
		}
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		s := &Scenario{}
		if err := json.Unmarshal(lines.Bytes(), s); err != nil {
			return nil, fmt.Errorf("%s, scenario %d: %w", name, len(list)+1, err)
		}
		list = append(list, s)
	}
	return list, lines.Err()
}
