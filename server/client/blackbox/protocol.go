package blackbox

// command is a line for the client.
type command struct {
	Do        string `json:"do"` // start, token, open, older, send, read, clock, show, resume or stop
	URL       string `json:"url,omitempty"`
	User      string `json:"user,omitempty"`
	Token     string `json:"token,omitempty"`
	Directory string `json:"directory,omitempty"`
	Chat      string `json:"chat,omitempty"`
	Text      string `json:"text,omitempty"`
	Sequence  int64  `json:"sequence,omitempty"`
	// Wall is how far the wall clock that the client sees is ahead of the real time, in milliseconds.
	Wall int64 `json:"wall,omitempty"`
}

// Abilities that a client may lack.
const (
	abilityKeep  = "keep"  // keeps its state in its directory when its process ends
	abilityOlder = "older" // loads older pages of messages
	abilityClock = "clock" // lets its wall clock be moved
)

// line is a line from the client. One field is set.
type line struct {
	Can   []string `json:"can"`
	Want  string   `json:"want"` // token
	Sent  *string  `json:"sent"` // the text of a message that is in the outbox and on the disk
	Shown *Shown   `json:"shown"`
}

// Shown is what an app shows to its user.
type Shown struct {
	Connection string         `json:"connection"` // for reports only
	Chats      []ShownChat    `json:"chats"`
	Outbox     []string       `json:"outbox"`  // texts of messages that the server has not confirmed
	Refused    []ShownRefused `json:"refused"` // messages that were given up since the process started
}

// ShownChat is a chat of the user.
type ShownChat struct {
	Chat     string         `json:"chat"`
	Title    string         `json:"title"` // the name of a group
	Unread   int64          `json:"unread"`
	Read     int64          `json:"read"`     // the user has read up to this sequence
	PeerRead int64          `json:"peerRead"` // in a direct chat: the other person has read up to this sequence
	Head     int64          `json:"head"`     // sequence of the newest message
	Members  []ShownMember  `json:"members"`  // of a chat that is open
	Messages []ShownMessage `json:"messages"` // of a chat that is open, without those of the outbox
}

// ShownMember is a member of a chat.
type ShownMember struct {
	User string `json:"user"`
	Role string `json:"role"` // owner, admin or member
}

// ShownMessage is a stored message.
type ShownMessage struct {
	Sequence int64  `json:"sequence"`
	Sender   string `json:"sender"`
	Text     string `json:"text"`
}

// ShownRefused is a message that the server refused, or that the client gave up.
type ShownRefused struct {
	Text   string `json:"text"`
	Reason string `json:"reason"` // of the server's error
}
