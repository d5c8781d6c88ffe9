package issuer

import (
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/auth"
)

// Subjects of two issuers are never one user, whatever they are called, and every user's id
// has its form.
func TestSubjectsAreUsers(t *testing.T) {
	a, b := &trusted{Trust: Trust{Users: "a."}}, &trusted{Trust: Trust{Users: "b."}}
	subjects := []string{"ann", "b.ann", "h-x", "h-", "a b", "a/b", "ä", "..", strings.Repeat("x", 62),
		strings.Repeat("x", 63),
		strings.Repeat("x", 255), "auth0|507f1f77bcf86cd799439011", "service:x", "\x00"}
	users := map[string]bool{}
	for _, subject := range subjects {
		for _, issuer := range []*trusted{a, b} {
			user, err := issuer.user(subject)
			if err != nil || auth.CheckUserID(user) != nil || users[user] {
				t.Errorf("%q is %q, %v", subject, user, err)
			}
			users[user] = true
			if again, _ := issuer.user(subject); again != user {
				t.Errorf("%q is %q, and %q", subject, user, again)
			}
			// Nobody chooses a subject that becomes another's user.
			stolen, _ := issuer.user(strings.TrimPrefix(user, issuer.Users))
			if strings.Contains(user, ".h-") && stolen == user {
				t.Errorf("%q is %q, too", user, stolen)
			}
		}
	}
	alone := &trusted{Trust: Trust{Users: "*"}}
	if user, _ := alone.user("ann"); user != "ann" {
		t.Error(user)
	}
	if user, _ := alone.user("service:shop"); strings.HasPrefix(user, "service:") {
		t.Error(user)
	}
	if user, _ := alone.user("usr_01ARZ3NDEKTSV4RRFFQ69G5FAV"); strings.HasPrefix(user, "usr_") {
		t.Errorf("a subject is %s, who signed up here", user)
	}
}

// The setting says what is wrong with it.
func TestParse(t *testing.T) {
	list, err := Parse(" https://a.example , aud=x,aud=y, users=a.,alg=ES256 ;https://b.example/t,aud=z,users=b.;")
	if err != nil || len(list) != 2 || list[0].URL != "https://a.example" ||
		!slices.Equal(list[0].Audiences, []string{"x", "y"}) ||
		!slices.Equal(list[0].Algorithms, []string{"ES256"}) || list[1].Users != "b." || len(list[1].Algorithms) != 3 {
		t.Fatal(list, err)
	}
	if list, err := Parse(""); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	if _, err := Parse("https://a.example,aud=x,users=*"); err != nil {
		t.Error(err)
	}
	for _, text := range []string{"a.example,aud=x,users=a.", "http://a.example,aud=x,users=a.",
		"https://a.example,users=a.",
		"https://a.example,aud=x", "https://a.example?x=y,aud=x,users=a.", "https://u:p@a.example,aud=x,users=a.",
		"https://a.example,aud=x,users=a.,alg=HS256", "https://a.example,aud=x,users=a.,alg=none",
		"https://a.example,aud=x,users=a.,typ=x",
		"https://a.example,aud=x,users=a.;https://a.example,aud=x,users=b.", "https://a.example,aud=x,users=a.;https://b.example,aud=x,users=a.b.",
		"https://a.example,aud=x,users=*;https://b.example,aud=x,users=b.", "https://a.example,aud=x,users=service:",
		"https://a.example,aud=x,users=usr_", "https://a.example,aud=x,users=usr_0", "https://a.example,aud=x,users=u",
		"https://a.example,aud=x,users=s", "https://a.example,aud=x,users=a b",
		"https://a.example,aud=x,users=" + strings.Repeat("x", 33)} {
		if _, err := Parse(text); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
