package telemetry

import (
	"log/slog"
	"strings"
)

// redacted stands in the place of what must not be seen.
const redacted = "[redacted]"

// Secret is a text that is used and never shown: every way to print, log or
// encode it shows a mark in its place. Convert it to a string to use it.
type Secret string

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// String implements fmt.Stringer.
func (Secret) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return redacted }

// MarshalText implements encoding.TextMarshaler, and so hides it in JSON too.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// blank hides attributes whose name says what they hold (S-38). It is a net below
// those who log, not a licence: free text, such as that of errors, passes.
func blank(_ []string, a slog.Attr) slog.Attr {
	switch strings.ToLower(a.Key) {
	case "authorization", "token", "password", "secret", "cookie", "otp", "content", "preview", "text":
		return slog.String(a.Key, redacted)
	}
	return a
}
