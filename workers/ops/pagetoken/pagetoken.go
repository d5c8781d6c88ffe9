// Package pagetoken makes the tokens of pages: a position in a list, bound to the query
// that the list answers. The token of another query would show a part of a list as if it
// were all.
//
// It owns the form of tokens, not what a position is. A token is no secret and no proof: a
// caller that forges one reads a page of data that it may read anyway, so a position is
// checked as any input. All functions are pure.
package pagetoken

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"

	"google.golang.org/protobuf/proto"
)

// ErrInvalid is the error of what is not a token of the query.
var ErrInvalid = errors.New("pagetoken: not a page token of this list")

// hashSize is the part of a query's hash that a token begins with, in bytes.
const hashSize = 8

// Encode makes the token of a position, which must not be empty. The query is a request
// with nothing set but what selects: no token and no size of a page.
func Encode(position []byte, query proto.Message) string {
	return base64.RawURLEncoding.EncodeToString(append(hashOf(query), position...))
}

// Decode returns the position of a token; nil for the empty token, which begins a list.
func Decode(token string, query proto.Message) ([]byte, error) {
	if token == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) <= hashSize || !bytes.Equal(b[:hashSize], hashOf(query)) {
		return nil, ErrInvalid
	}
	return b[hashSize:], nil
}

func hashOf(query proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(query)
	if err != nil {
		return make([]byte, hashSize) // a request that was decoded can be encoded
	}
	sum := sha256.Sum256(b)
	return sum[:hashSize:hashSize]
}
