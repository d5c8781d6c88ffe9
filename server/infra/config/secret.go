package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// Secret is a value that shows itself only to callers that ask for it. One that stands in a
// file of its own is read there each time, so that it can be replaced while programs run.
type Secret string

const hidden = "(hidden)"

// inFile begins a Secret that is a path; no value of a setting has the character.
const inFile = "\x00"

// fileSuffix ends the name of the setting that says in which file a secret is.
const fileSuffix = "_FILE"

// String hides the value from formatting.
func (Secret) String() string { return hidden }

// GoString hides the value from %#v.
func (Secret) GoString() string { return hidden }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText hides the value from JSON and the like.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Reveal returns the value; of a secret in a file what the file has now, and nothing while it
// cannot be read.
func (s Secret) Reveal() string {
	path, ok := strings.CutPrefix(string(s), inFile)
	if !ok {
		return string(s)
	}
	value, err := readSecret(path)
	if err != nil {
		return ""
	}
	return value
}

// readSecret reads a file that has a secret in its one line. Errors do not show what is in it.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxValue+3)) // with the end of the line
	if err != nil {
		return "", err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case value == "":
		return "", fmt.Errorf("%s is empty", path)
	case len(value) > maxValue || strings.ContainsAny(value, "\n\r\x00"):
		return "", fmt.Errorf("%s must be one line of at most %d bytes", path, maxValue)
	}
	return value, nil
}

// secretFile returns the value of a secret that stands in a file of its own, if one is named
// beside the value that was found.
func (f Flags) secretFile(s Setting, value string, env map[string]string, lines map[string]line) (string, error) {
	path, _ := f.find(Setting{Name: s.Name + fileSuffix}, env, lines)
	if !s.Secret || path == "" {
		return value, nil
	}
	if value != "" {
		return "", errors.New("is given itself and in a file: one of both is enough")
	}
	if _, err := readSecret(path); err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	return inFile + path, nil
}
