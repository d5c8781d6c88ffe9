package itemcodec

// words are what items of Format say so often that a number stands for it: names of
// attributes, and texts that are one of a few. A word's place is part of that format: the
// list is never changed or added to without a new one. Other words are written out.
var words = [...]string{
	"archived", "attempts", "body", "changed_at", "chat_id", "chat_type", "chats", "client_message_id", "content",
	"content_type", "count", "created_at", "created_by", "delivered_sequence", "direct_users", "event_id", "event_type",
	"expires_at", "hash", "history", "joined_at", "joined_sequence", "joined_version", "last_error", "last_message_at",
	"last_preview", "last_sender", "last_sequence", "left_version", "member_count", "members", "membership_version",
	"message_id", "muted_until", "name", "payload", "read_sequence", "revision", "role", "sender_id", "sequence",
	"status", "updated_at", "version",

	"ChatCreated", "ChatUpdated", "MembershipChanged", "MessagePersisted", "active", "admin", "all", "direct", "group",
	"member", "owner", "since_joined",
}

// wordSlots is a hash table of the words' numbers, from 1; 0 is free.
const wordSlots = 256

var wordTable = func() (t [wordSlots]byte) {
	for i, w := range words {
		at := wordSlot(w)
		for t[at] != 0 {
			at = (at + 1) % wordSlots
		}
		t[at] = byte(i + 1)
	}
	return t
}()

const longestWord = len("delivered_sequence")

// wordSlot is where the search for a word begins; it is not empty.
func wordSlot(s string) int {
	return (len(s)*37 + int(s[0])*11 + int(s[len(s)-1])*5 + int(s[len(s)/2])*17) % wordSlots
}

// wordNumber returns the number of a word, from 1; 0 for other texts.
func wordNumber(s string) byte {
	if s == "" || len(s) > longestWord {
		return 0
	}
	for at := wordSlot(s); ; at = (at + 1) % wordSlots {
		n := wordTable[at]
		if n == 0 || words[n-1] == s {
			return n
		}
	}
}

// word returns the word of a number, "" if there is none.
func word(n byte) string {
	if n == 0 || int(n) > len(words) {
		return ""
	}
	return words[n-1]
}
