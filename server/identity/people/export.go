package people

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Record is a part of what is stored about a user: one of its fields is set, but for
// Cursor, with which an export resumes after it.
type Record struct {
	Cursor     string
	Profile    *Profile
	Settings   *Settings
	Identifier string
	Blocked    *rows.Block
	Invitation *rows.Invitation
	Chat       *ExportedChat
	Message    *table.Message
	End        *End
}

// ExportedChat is a chat of the user, with what it holds for the user alone.
type ExportedChat struct {
	Chat table.Chat
	Own  table.UserChat
}

// End says that an export is complete.
type End struct {
	Messages int64 // of this call
}

// The parts of an export, in their order.
const (
	partProfile = iota + 1
	partSettings
	partIdentifiers
	partBlocked
	partInvitations
	partChats
)

// exportCursor is where an export is: after the entry of a part, and in a chat after a message.
type exportCursor struct {
	part     int
	entry    string
	sequence int64
}

func (p exportCursor) cursor() string {
	return strconv.Itoa(p.part) + "/" + strconv.FormatInt(p.sequence, 10) + "/" + p.entry
}

// exportCursorOf reads a cursor; an empty one is before everything.
func exportCursorOf(cursor string) (p exportCursor, err error) {
	if cursor == "" {
		return exportCursor{}, nil
	}
	parts := strings.SplitN(cursor, "/", 3)
	if len(parts) != 3 || len(parts[2]) > table.MaxUserID*4 {
		return p, ErrCursor
	}
	p.entry = parts[2]
	if p.part, err = strconv.Atoi(parts[0]); err != nil || p.part < partProfile || p.part > partChats {
		return p, ErrCursor
	}
	if p.sequence, err = strconv.ParseInt(parts[1], 10, 64); err != nil || p.sequence < 0 {
		return p, ErrCursor
	}
	return p, nil
}

// export is one call of Export.
type export struct {
	*Service
	user     string
	from     exportCursor
	send     func(Record) error
	messages int64
}

// Export sends what is stored about a user, what is durable of it, from a cursor on. Chats
// that the user left are in it with the messages that the user sent there, as long as they
// are remembered. Errors: ErrBusy, ErrCursor, ErrUnknown, those of send and of the store.
func (s *Service) Export(ctx context.Context, user, cursor string, send func(Record) error) error {
	from, err := exportCursorOf(cursor)
	if err != nil {
		return err
	}
	s.mu.Lock()
	busy := s.exporting[user]
	s.exporting[user] = true
	s.mu.Unlock()
	if busy {
		return ErrBusy
	}
	defer func() {
		s.mu.Lock()
		delete(s.exporting, user)
		s.mu.Unlock()
	}()
	e := &export{Service: s, user: user, from: from, send: send}
	for _, part := range []func(context.Context) error{e.own, e.identifiers, e.lists, e.chats} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return send(Record{Cursor: exportCursor{part: partChats, entry: "~"}.cursor(), End: &End{e.messages}})
}

// emit sends a record of a position, unless the caller has it.
func (e *export) emit(at exportCursor, r Record) error {
	if at.part < e.from.part || at.part == e.from.part && at.entry <= e.from.entry {
		return nil
	}
	r.Cursor = at.cursor()
	return e.send(r)
}

func (e *export) own(ctx context.Context) error {
	p, err := e.profile(ctx, e.user)
	if err != nil {
		return err
	}
	settings, err := e.Settings(ctx, e.user) // which waits until both are durable
	if err != nil {
		return err
	}
	if err := e.emit(exportCursor{part: partProfile, entry: "-"}, Record{Profile: &p}); err != nil {
		return err
	}
	return e.emit(exportCursor{part: partSettings, entry: "-"}, Record{Settings: &settings})
}

func (e *export) identifiers(ctx context.Context) error {
	if e.cfg.Identifiers == nil {
		return nil
	}
	list, err := e.cfg.Identifiers.OfUser(ctx, e.user)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(slices.Values(list)) {
		if err := e.emit(exportCursor{part: partIdentifiers, entry: id}, Record{Identifier: id}); err != nil {
			return err
		}
	}
	return nil
}

func (e *export) lists(ctx context.Context) error {
	for row, err := range e.query(ctx, rows.Blocks(e.user)) {
		if err == nil {
			err = e.commits.Durable(ctx, nil)
		}
		if err != nil {
			return err
		}
		b := rows.BlockFrom(row)
		if err := e.emit(exportCursor{part: partBlocked, entry: b.Other}, Record{Blocked: &b}); err != nil {
			return err
		}
	}
	list, err := e.Invitations(ctx, e.user)
	if err != nil {
		return err
	}
	for _, i := range list {
		if err := e.emit(exportCursor{part: partInvitations, entry: i.ChatID}, Record{Invitation: &i}); err != nil {
			return err
		}
	}
	return nil
}

// chats sends the chats in order of their ids, each followed by the user's messages.
func (e *export) chats(ctx context.Context) error {
	own := map[string]table.UserChat{}
	for row, err := range e.commits.Partition(ctx, store.DeliveryState, table.LeftPartition(e.user)) {
		if err != nil {
			return err
		}
		if row.Key.SK >= table.FirstLeft { // by chat; the others are the same by time
			own[row.Key.SK] = table.UserChatFrom(e.user, row.Key.SK, row.Item)
		}
	}
	for row, err := range e.commits.Partition(ctx, store.DeliveryState, e.user) {
		if err != nil {
			return err
		}
		own[row.Key.SK] = table.UserChatFrom(e.user, row.Key.SK, row.Item)
	}
	ids := make([]string, 0, len(own))
	for id := range own {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if e.from.part == partChats && id < e.from.entry {
			continue
		}
		if err := e.chat(ctx, own[id]); err != nil {
			return err
		}
	}
	return nil
}

func (e *export) chat(ctx context.Context, own table.UserChat) error {
	at := exportCursor{part: partChats, entry: own.ChatID}
	if !own.Left() {
		it, err := e.commits.Get(ctx, table.ChatKey(own.ChatID))
		if err == nil {
			err = e.commits.Durable(ctx, nil)
		}
		if err != nil {
			return err
		}
		if err := e.emit(at, Record{Chat: &ExportedChat{table.ChatFrom(own.ChatID, it), own}}); err != nil {
			return err
		}
	}
	after := int64(0)
	if e.from.part == partChats && e.from.entry == own.ChatID {
		after = e.from.sequence
	}
	q := store.Query{Table: store.Messages, PK: own.ChatID, From: table.Number(max(after+1, own.FirstSequence())),
		Consistency: store.Strong}
	for row, err := range e.query(ctx, q) {
		if err != nil {
			return err
		}
		m, err := table.MessageFrom(row)
		if err != nil {
			return err
		}
		if m.SenderID != e.user || !own.Visible(m.Version, m.Sequence) {
			continue
		}
		if err := e.commits.Durable(ctx, nil); err != nil {
			return err
		}
		e.messages++
		at.sequence = m.Sequence
		if err := e.send(Record{Cursor: at.cursor(), Message: &m}); err != nil {
			return err
		}
	}
	return nil
}
