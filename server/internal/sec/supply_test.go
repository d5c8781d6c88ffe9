package sec

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// module is what the go command says of one.
type module struct {
	Path, Version, Dir, Sum string
	Main                    bool
	Replace                 *module
}

// modules are those that the programs are built from.
func modules(t *testing.T) (all []module) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-mod=readonly", "-deps", "-json=Module", "./server",
		"./workers",
		"./schemacheck")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ Module *module }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if m := p.Module; m != nil && !m.Main && !seen[m.Path] {
			seen[m.Path] = true
			all = append(all, *m)
		}
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// licences are recognised by what their texts say, the longer ones first.
var licences = []struct {
	id   string
	says *regexp.Regexp
}{
	{"Apache-2.0", regexp.MustCompile(`Apache License\s+Version 2\.0`)},
	{"MPL-2.0", regexp.MustCompile(`Mozilla Public License,? [Vv]ersion 2\.0`)},
	{"BSD-3-Clause", regexp.MustCompile(`(?s)Redistribution and use in source and binary forms.*[Nn]either the name`)},
	{"BSD-2-Clause", regexp.MustCompile(`Redistribution and use in source and binary forms`)},
	{"MIT", regexp.MustCompile(`Permission is hereby granted, free of charge`)},
	{"ISC", regexp.MustCompile(`Permission to use, copy, modify, and(/or)? distribute this software`)},
	{"Unlicense", regexp.MustCompile(`This is free and unencumbered software`)},
}

func licenceOf(dir string) string {
	for _, pattern := range []string{"LICENSE*", "LICENCE*", "COPYING*", "License*", "license*"} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are good
		for _, path := range found {
			b, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			for _, l := range licences {
				if l.says.Match(b) {
					return l.id
				}
			}
		}
	}
	return ""
}

// Every module that is built in has one version and a sum, is not replaced, and has a licence that lets it be used.
// With
// PARLEY_SBOM a file is written that lists them, as CycloneDX (S-49).
func TestSec_S_49_DependenciesAreKnown(t *testing.T) {
	f, err := os.Open(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sums := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) == 3 && strings.HasPrefix(words[2], "h1:") {
			sums[words[0]+" "+words[1]] = true
		}
	}
	type licence struct {
		ID string `json:"id"`
	}
	type component struct {
		Type     string               `json:"type"`
		Name     string               `json:"name"`
		Version  string               `json:"version"`
		PURL     string               `json:"purl"`
		Licences []map[string]licence `json:"licenses"`
	}
	var list []component
	for _, m := range modules(t) {
		id := licenceOf(m.Dir)
		if m.Version == "" || m.Replace != nil || !sums[m.Path+" "+m.Version] {
			t.Errorf("%s %s is not pinned: replaced by %v, has a sum: %v", m.Path, m.Version, m.Replace,
				sums[m.Path+" "+m.Version])
		}
		if id == "" {
			t.Errorf("%s %s has no licence that is known", m.Path, m.Version)
		}
		list = append(list, component{"library", m.Path, m.Version, "pkg:golang/" + m.Path + "@" + m.Version,
			[]map[string]licence{{"license": {id}}}})
	}
	if len(list) < 30 {
		t.Errorf("%d modules", len(list))
	}
	path := os.Getenv("PARLEY_SBOM")
	if path == "" {
		return
	}
	b, err := json.MarshalIndent(map[string]any{"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"components": list}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
}
