package telemetry

import (
	"log/slog"
	"strings"
)

// redacted stands in the place of what must not be seen.
const redacted = "[redacted]"

// redact hides attributes whose name says what they hold: tokens, and what users wrote, do
// not belong in a log, which many can read. It is a safety net for callers, not a licence:
// free text, such as that of errors, passes.
func redact(_ []string, a slog.Attr) slog.Attr {
	switch strings.ToLower(a.Key) {
	case "authorization", "token", "password", "secret", "cookie", "otp", "content", "preview", "text":
		return slog.String(a.Key, redacted)
	}
	return a
}
