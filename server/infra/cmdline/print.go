package cmdline

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// PrintJSON prints a message as a line of JSON, with the fields that have their default.
func PrintJSON(w io.Writer, m proto.Message) {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil { // a message that was decoded can be encoded
		b = []byte("{}")
	}
	fmt.Fprintln(w, string(b))
}

// Terminal reports whether the output goes to a terminal.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Safe makes text of others fit for a terminal: control characters are escaped.
func Safe(s string) string {
	q := strconv.Quote(s)
	if q == `"`+s+`"` && s != "" {
		return s
	}
	return q
}

// FormatTime writes a time in UTC, to the second; "-" if there is none.
func FormatTime(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// FormatDuration writes a duration as flags take it, see WriteDuration; "-" if there is none.
func FormatDuration(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return WriteDuration(d.AsDuration())
}

// WriteDuration writes a duration as flags take it: days if it has whole ones, and without
// zeros at its end.
func WriteDuration(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
