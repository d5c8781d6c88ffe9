package pagetoken

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A token leads back to its position, for its own query only.
func TestToken(t *testing.T) {
	query, other := wrapperspb.String("a"), wrapperspb.String("b")
	token := Encode([]byte("x\x00y"), query)
	if got, err := Decode(token, query); string(got) != "x\x00y" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := Decode("", query); got != nil || err != nil {
		t.Errorf("no token: %q, %v", got, err)
	}
	for name, token := range map[string]string{"of another query": Encode([]byte("x"), other), "nonsense": "%",
		"short": "AAAA", "without a position": Encode(nil, query)} {
		if got, err := Decode(token, query); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
