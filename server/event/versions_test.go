package event

import "testing"

// A type that only a newer process knows is foreign under every version of its topic, and
// never a reason for a dead letter.
func TestSubjectsOfVersions(t *testing.T) {
	for subject, want := range map[string]bool{
		"messages.persisted-parley.event.v1.Newer":     true,
		"messages.persisted.v2-parley.event.v1.Newer":  true,
		"messages.persisted.v12-parley.event.v1.Newer": true,
		"messages.persisted.v-parley.event.v1.Newer":   false,
		"messages.persisted.vx-parley.event.v1.Newer":  false,
		"messages.persisted.other-x":                   false,
		"messages.persistedv2-x":                       false,
		"messages.persisted.v2":                        false,
		"other-messages.persisted":                     false,
	} {
		if have := carries(subject, "messages.persisted"); have != want {
			t.Errorf("%s: %v", subject, have)
		}
	}
}
