package api

import (
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
)

func protoString(s string) protoreflect.Value { return protoreflect.ValueOfString(s) }

// checkContent refuses control characters in a message, except line feed, carriage
// return and tab; the text is stored byte for byte (S-23).
func checkContent(text string) error {
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' {
			return fmt.Errorf("%w: content has the control character %U", errInvalidRequest, r)
		}
	}
	return nil
}

// checkName refuses, in a name, control characters and those that make it look
// like another: bidirectional overrides and characters without width.
func checkName(name string) error {
	for _, r := range name {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || unicode.Is(unicode.Cf, r) {
			return fmt.Errorf("%w: name has the invisible character %U", errInvalidRequest, r)
		}
	}
	if name != "" && strings.TrimSpace(name) == "" {
		return fmt.Errorf("%w: name is blank", errInvalidRequest)
	}
	return nil
}
