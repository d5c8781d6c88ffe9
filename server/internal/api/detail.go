package api

import (
	"errors"
	"maps"

	"github.com/parley-chat/parley/server/chat"
)

// advice says how to find out what happened.
func (e *unknownOutcome) advice() string {
	if e.metadata(nil) == nil {
		return ": look before doing it again; requests with an id can be repeated"
	}
	return ": repeat it with the same " + e.field
}

// metadata adds the key under its field's name to what else is known.
func (e *unknownOutcome) metadata(to map[string]string) map[string]string {
	if e == nil || e.key == "" {
		return to
	}
	if to == nil {
		to = map[string]string{}
	}
	to[e.field] = e.key
	return to
}

// detailed is what a client sees of an error besides its reason: the rule that refused,
// in its own words, with what it compared.
func detailed(err error, text string) (string, map[string]string) {
	metadata := map[string]string{}
	var refused *chat.Refusal
	if errors.As(err, &refused) {
		text = refused.Text
		maps.Copy(metadata, refused.Values)
		metadata["rule"] = refused.Rule
	}
	if len(metadata) == 0 {
		return text, nil
	}
	return text, metadata
}
