package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Levels of compatibility: which schemas a subject's next version must agree with,
// and in which direction.
const (
	None               = "NONE"
	Backward           = "BACKWARD" // new consumers read old records
	BackwardTransitive = "BACKWARD_TRANSITIVE"
	Forward            = "FORWARD" // old consumers read new records
	ForwardTransitive  = "FORWARD_TRANSITIVE"
	Full               = "FULL"
	FullTransitive     = "FULL_TRANSITIVE"
)

// Modes: what may be done to a subject.
const (
	ReadWrite        = "READWRITE"
	ReadOnly         = "READONLY"
	ReadOnlyOverride = "READONLY_OVERRIDE" // as READONLY, regardless of subjects' own modes
	Import           = "IMPORT"            // ids and versions are given by the caller, nothing is compared
)

// Names of settings, and what holds where none is set.
const (
	levels       = "level"
	modes        = "mode"
	defaultLevel = Full
	defaultMode  = ReadWrite
)

func (r *Registry) setting(ctx context.Context, name, subject string) (string, bool, error) {
	it, err := r.store.Get(ctx, table.SchemaSettingKey(name, subject), store.Strong)
	if err != nil {
		return "", false, fmt.Errorf("registry: read the %s: %w", name, err)
	}
	return it.Get(table.AttrSetting).Str(), it != nil, nil
}

func (r *Registry) set(ctx context.Context, name, subject, value string) error {
	w := store.Write{Op: store.OpDelete, Key: table.SchemaSettingKey(name, subject)}
	if value != "" {
		w.Op, w.Item = store.OpPut, store.NewItem(store.Attr{Name: table.AttrSetting, Value: store.String(value)})
	}
	// Without conditions: the engine may repeat it until it has an answer.
	if err := r.store.BatchWrite(ctx, []store.Write{w}); err != nil {
		return fmt.Errorf("registry: set the %s: %w", name, err)
	}
	return nil
}

// effective returns a setting of a subject, else the one of all, else the default.
func (r *Registry) effective(ctx context.Context, name, subject, otherwise string) (string, error) {
	for _, of := range slices.Compact([]string{subject, ""}) {
		if v, ok, err := r.setting(ctx, name, of); err != nil || ok {
			return v, err
		}
	}
	return otherwise, nil
}

// Level returns the level of a subject, "" for that of all. A subject without one
// answers with that of all, if inherit, else with 40408.
func (r *Registry) Level(ctx context.Context, subject string, inherit bool) (string, error) {
	if inherit || subject == "" {
		return r.effective(ctx, levels, subject, defaultLevel)
	}
	v, ok, err := r.setting(ctx, levels, subject)
	if err == nil && !ok {
		err = invalid(codeLevelNotConfigured, textLevelNotConfigured, shortened(subject))
	}
	return v, err
}

// SetLevel sets the level of a subject, "" for that of all.
func (r *Registry) SetLevel(ctx context.Context, subject, level string) error {
	level = strings.ToUpper(level)
	if !slices.Contains([]string{None, Backward, BackwardTransitive, Forward, ForwardTransitive, Full, FullTransitive},
		level) {
		return invalid(codeLevel, "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, forward_transitive, and full_transitive")
	}
	if subject != "" {
		if err := validSubject(subject); err != nil {
			return err
		}
	}
	return r.set(ctx, levels, subject, level)
}

// ResetLevel removes a level and returns it.
func (r *Registry) ResetLevel(ctx context.Context, subject string) (string, error) {
	v, err := r.Level(ctx, subject, false)
	if err != nil {
		return "", err
	}
	return v, r.set(ctx, levels, subject, "")
}

// Mode returns the mode of a subject, "" for that of all; see Level.
func (r *Registry) Mode(ctx context.Context, subject string, inherit bool) (string, error) {
	if inherit || subject == "" {
		return r.effective(ctx, modes, subject, defaultMode)
	}
	v, ok, err := r.setting(ctx, modes, subject)
	if err == nil && !ok {
		err = invalid(codeModeNotConfigured, textModeNotConfigured, shortened(subject))
	}
	return v, err
}

// SetMode sets the mode of a subject, "" for that of all. IMPORT asks for an empty
// registry or subject, unless forced: ids could clash.
func (r *Registry) SetMode(ctx context.Context, subject, mode string, force bool) error {
	mode = strings.ToUpper(mode)
	if !slices.Contains([]string{ReadWrite, ReadOnly, ReadOnlyOverride, Import}, mode) {
		return invalid(codeMode, "Invalid mode. Valid values are READWRITE, READONLY, READONLY_OVERRIDE and IMPORT")
	}
	if subject != "" {
		if err := validSubject(subject); err != nil {
			return err
		}
	}
	if mode == Import && !force {
		from := ""
		if subject != "" {
			from = subject
		}
		found := false
		err := r.eachRow(ctx, table.SchemaSubjectsPartition, from, from, func(row store.Row) error {
			found = found || table.SchemaSubjectFrom(row.Item).Live > 0
			return nil
		})
		if err != nil {
			return fmt.Errorf("registry: read subjects: %w", err)
		}
		if found {
			return invalid(codeNotPermitted, textImportWithSubjects)
		}
	}
	return r.set(ctx, modes, subject, mode)
}

// ResetMode removes a mode and returns it.
func (r *Registry) ResetMode(ctx context.Context, subject string) (string, error) {
	v, err := r.Mode(ctx, subject, false)
	if err != nil {
		return "", err
	}
	return v, r.set(ctx, modes, subject, "")
}

// writable returns the mode of a subject that may be changed.
func (r *Registry) writable(ctx context.Context, subject string) (string, error) {
	all, err := r.effective(ctx, modes, "", defaultMode)
	if err != nil {
		return "", err
	}
	mode, err := r.effective(ctx, modes, subject, defaultMode)
	if err != nil {
		return "", err
	}
	if all == ReadOnlyOverride || mode == ReadOnly || mode == ReadOnlyOverride {
		return "", invalid(codeNotPermitted, textReadOnly, shortened(subject))
	}
	return mode, nil
}
