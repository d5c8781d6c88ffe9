package command

import "testing"

func TestHashIsCanonical(t *testing.T) {
	a, b := hash("ab", "c"), hash("a", "bc")
	if string(a) == string(b) || string(a) != string(hash("ab", "c")) || len(a) != 32 {
		t.Error("lists share a hash")
	}
	text := Send{Caller: "u", ChatID: "c", ClientMessageID: "k", Content: "x", ContentType: 1}
	other := text
	other.ContentType = 2
	if string(text.Idempotency().Hash) == string(other.Idempotency().Hash) {
		t.Error("the content type is not in the hash")
	}
}
