// Package check checks that the data of a stopped server is consistent, and repairs what
// can be derived.
//
// The events of a chat are its source of truth: heads, chats, members, messages, users'
// rows, counts and indexes are compared with the rows derived from the events (package
// derive), in both directions, and rewritten where they differ. Facts that cannot be
// derived are never invented and never deleted: missing events, a row without a cause. Such
// findings name a remedy.
//
// It owns the order of the checks, the findings and their texts. Opening and files are
// package backend's, keys and rows package table's. In the distributed mode other processes
// write at the same time: there the reconciler does this comparison.
//
// Memory is bounded: tables are read side by side in the order of their keys; in memory are
// one chat's members and recent leavers, and 8 bytes for each event in the log.
//
// Concurrency: [Run] has the data directory to itself and runs on one goroutine.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/store"
)

// Kind is the kind of a finding. Its text is for scripts and does not change.
type Kind string

// The kinds of findings.
const (
	FileDamaged      Kind = "file_damaged"      // a table file of the store
	DataMissing      Kind = "data_missing"      // the seal has more than the store
	LogDamaged       Kind = "log_damaged"       // a partition of the event log
	KeyMissing       Kind = "key_missing"       // the key that signs tokens
	RowUnreadable    Kind = "row_unreadable"    // bytes that are no row
	KeyUnknown       Kind = "key_unknown"       // a key of no table
	EventWrong       Kind = "event_wrong"       // an event is missing or cannot be read
	HeadWrong        Kind = "head_wrong"        // chat_counters
	HeadAhead        Kind = "head_ahead"        // the end of a chat's events is missing
	ChatWrong        Kind = "chat_wrong"        // chats
	PendingWrong     Kind = "pending_wrong"     // pending_members
	MemberWrong      Kind = "member_wrong"      // chat_memberships
	MessageWrong     Kind = "message_wrong"     // messages
	UserChatWrong    Kind = "user_chat_wrong"   // delivery_state
	LeftWrong        Kind = "left_wrong"        // delivery_state, of a chat that was left
	UserWrong        Kind = "user_wrong"        // users
	PairWrong        Kind = "pair_wrong"        // direct_chat_index
	RequestWrong     Kind = "request_wrong"     // idempotency_keys
	OutboxWrong      Kind = "outbox_wrong"      // outbox
	EventUnpublished Kind = "event_unpublished" // neither in the log nor in the outbox
	SchemaWrong      Kind = "schema_wrong"      // schemas
	TopicWrong       Kind = "topic_wrong"       // the log of a topic
	ExpiryWrong      Kind = "expiry_wrong"      // index of expiries
)

// Finding is something that is wrong.
type Finding struct {
	Kind   Kind
	Where  string // table and key, or file
	What   string
	Remedy string
	Fixed  bool
}

// String is the finding in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s: %s; %s", f.Kind, f.Where, f.What, f.Remedy)
}

// Config configures a check. Data, Clock and Out are required.
type Config struct {
	Data   *backend.Offline
	Repair bool // Data is open for writing
	Clock  func() time.Time
	Out    io.Writer // gets a line for each finding, and the progress
	Key    error     // why the key that signs tokens cannot be read
	// Backup, if given, has events that a repair may put back: those that the store has lost.
	Backup *backend.Offline
	// OnFinding, if given, is called with each finding.
	OnFinding func(Finding)
	// OnRepair, if given, is called after each repair; tests interrupt it there.
	OnRepair func()
}

// Report is what was found.
type Report struct {
	Found, Fixed int
	Kinds        map[Kind]int
	Chats        int64
	Messages     int64
	Events       int64
	Users        int64
	Rows         int64
	Topics       int64 // with messages, or that had some
	// TopicMessages are those of topics.
	TopicMessages int64
	Took          time.Duration
}

// shown bounds the lines about findings of one kind.
const shown = 1000

// Remedies.
const (
	restoreBackup = "restore a backup; nothing else has it"
	byRepair      = "--repair writes it again from what the events say"
)

// checker is a check in progress.
type checker struct {
	Config
	ctx context.Context
	st  store.Store
	now time.Time

	report   Report
	progress progress
	log      *published
	// unchecked are chats whose events are incomplete: rows that depend on them stay
	// unchanged.
	unchecked map[string]bool
	noRepair  string // why nothing may be repaired
	renewed   bool
}

// Run checks everything. Errors say why it could not continue; the report holds the findings
// so far.
func Run(ctx context.Context, cfg Config) (Report, error) {
	c := &checker{Config: cfg, ctx: ctx, st: cfg.Data.Store, now: cfg.Clock(), unchecked: map[string]bool{}}
	c.report.Kinds = map[Kind]int{}
	c.progress = progress{out: cfg.Out, clock: cfg.Clock, began: c.now, reported: c.now, total: cfg.Data.Raw.Estimate()}
	err := c.run()
	c.report.Rows = c.progress.rows
	c.report.Took = cfg.Clock().Sub(c.now)
	if err != nil {
		return c.report, err
	}
	for _, k := range slices.Sorted(maps.Keys(c.report.Kinds)) {
		if n := c.report.Kinds[k]; n > shown {
			fmt.Fprintf(cfg.Out, "%s: %d findings in all\n", k, n)
		}
	}
	return c.report, ctx.Err()
}

func (c *checker) run() error {
	if c.Key != nil {
		c.record(Finding{Kind: KeyMissing, Where: "auth.key", What: c.Key.Error(),
			Remedy: "put it back: with another one all sessions end"})
	}
	steps := []struct {
		name string
		do   func() error
	}{
		{"table files", c.files}, {"event log", c.eventLog}, {"lost events", c.lostEvents}, {"chats", c.chats},
		{"users", c.users}, {"outbox", c.outbox},
		{"direct chats", c.pairs}, {"requests", c.requests}, {"schemas", c.schemas}, {"logs", c.logs},
		{"other tables", c.others}, {"expiries", c.expiries},
	}
	for _, s := range steps {
		c.progress.step = s.name
		if err := errors.Join(c.ctx.Err(), s.do()); err != nil {
			return fmt.Errorf("check %s: %w", s.name, err)
		}
		if c.report.Kinds[FileDamaged] > 0 { // what rows say follows from the damage
			fmt.Fprintln(c.Out, "nothing else was checked: files of the store are damaged")
			return nil
		}
	}
	return nil
}

// found reports a finding. Writes, if there are any, repair it: each sets a row to its
// derived value, so that they can be interrupted and repeated.
func (c *checker) found(k Kind, where fmt.Stringer, what, remedy string, writes ...store.Write) error {
	f := Finding{Kind: k, Where: where.String(), What: what, Remedy: remedy}
	var err error
	if len(writes) > 0 && c.Repair && c.noRepair == "" {
		if err = c.write(k, writes); err == nil {
			f.Fixed, f.Remedy = true, "repaired"
		}
	} else if len(writes) > 0 && c.noRepair != "" {
		f.Remedy = c.noRepair
	}
	c.record(f)
	return err
}

func (c *checker) record(f Finding) {
	c.report.Found++
	if f.Fixed {
		c.report.Fixed++
	}
	if c.report.Kinds[f.Kind]++; c.report.Kinds[f.Kind] <= shown {
		fmt.Fprintln(c.Out, f)
	}
	if c.OnFinding != nil {
		c.OnFinding(f)
	}
}

// invisible are kinds that no client can observe.
var invisible = map[Kind]bool{OutboxWrong: true, EventUnpublished: true, RequestWrong: true, SchemaWrong: true,
	ExpiryWrong: true}

// write writes rows. Before the first row that clients may have seen the store gets a new
// generation, so that they synchronise from the start. The generation comes first, because
// after an interruption the next check finds nothing to repair.
func (c *checker) write(k Kind, writes []store.Write) error {
	if !invisible[k] && !c.renewed {
		if err := c.Data.Store.Renew(); err != nil {
			return fmt.Errorf("begin a new generation: %w", err)
		}
		c.renewed = true
	}
	for len(writes) > 0 {
		part := writes[:min(len(writes), repairWrites)]
		writes = writes[len(part):]
		for i := range part { // a plan reads what it replaces
			if err := c.Data.Raw.Discard(part[i].Key); err != nil {
				return fmt.Errorf("repair %s: %w", part[i].Key, err)
			}
		}
		if err := c.st.Transact(c.ctx, store.Plan{Writes: part}); err != nil {
			return fmt.Errorf("repair %s: %w", part[0].Key, err)
		}
		if c.OnRepair != nil {
			c.OnRepair()
		}
	}
	return nil
}

// repairWrites is how many rows are repaired at once; messages are large.
const repairWrites = 25

func put(k store.Key, it store.Item) store.Write {
	return store.Write{Op: store.OpPut, Key: k, Item: it}
}

func remove(k store.Key) store.Write { return store.Write{Op: store.OpDelete, Key: k} }

// location is the location of a finding that is not a row.
type location string

// String is the location.
func (p location) String() string { return string(p) }
