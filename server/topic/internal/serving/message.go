package serving

import (
	"strconv"
	"strings"

	"github.com/parley-chat/parley/server/topic/refusal"
)

// MessageID is the id of a message.
func MessageID(partition int32, position int64) string {
	id := append(strconv.AppendInt(make([]byte, 0, 32), int64(partition), 10), '-')
	return string(strconv.AppendInt(id, position, 10))
}

// Message reads the id of a message of the topic.
func (t *OpenTopic) Message(id string) (part int, position int64, err error) {
	a, b, _ := strings.Cut(id, "-")
	part, err = strconv.Atoi(a)
	if err == nil {
		position, err = strconv.ParseInt(b, 10, 64)
	}
	if err != nil || part < 0 || position < 0 {
		return 0, 0, refusal.New(refusal.InvalidArgument, "%.32q is not the id of a message", id)
	}
	if part >= len(t.Parts) {
		return 0, 0, refusal.New(refusal.PositionOutOfRange, "the topic's partitions are 0 to %d", len(t.Parts)-1)
	}
	return part, position, nil
}
