package table

import (
	"strings"
	"testing"
	"unsafe"
)

// A preview of a long text does not keep the text in memory.
func TestPreviewIsACopy(t *testing.T) {
	text := strings.Repeat("é", 10_000)
	p := Preview(text)
	if p != text[:128] {
		t.Fatalf("%d bytes, want 128", len(p))
	}
	if unsafe.StringData(p) == unsafe.StringData(text) {
		t.Error("the preview is a part of the text")
	}
}
