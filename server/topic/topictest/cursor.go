package topictest

import "github.com/parley-chat/parley/server/topic/internal/machine"

// Cursor is the stored position of a group of generation 1: it began at position 3, has
// processed 17 messages, and has acknowledged the positions 5 to 8.
func Cursor() []byte {
	all, none := machine.SetOf(machine.Run{From: 3, To: machine.NoEnd}), machine.Set{}
	acked := machine.SetOf(machine.Run{From: 5, To: 9})
	c := machine.Cursor{Generation: 1, Start: 3, Floor: 4, Processed: 17, Required: &all, Optional: &none, Acked: &acked,
		History: &none}
	return c.Append(nil)
}

// Restarted reports whether a stored position is that of Cursor after its group was put back to
// the first position: it receives everything, has acknowledged nothing, and its counters stay.
func Restarted(cursor []byte) bool {
	c, err := machine.DecodeCursor(cursor, machine.NoEnd)
	if err != nil {
		return false
	}
	runs := c.Required.Runs()
	return len(runs) == 1 && runs[0] == machine.Run{To: machine.NoEnd} && c.Processed == 17 && c.Acked.Empty() &&
		c.Floor == 0
}
