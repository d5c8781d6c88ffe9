package registry

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Error is a refusal with the code that Confluent's API gives it. Its text is meant
// for callers.
type Error struct {
	Code    int // 40401, 42201, 409
	Message string
}

func (e *Error) Error() string { return e.Message }

// Status is the HTTP status that a code belongs to.
func (e *Error) Status() int {
	if e.Code > 999 {
		return e.Code / 100
	}
	return e.Code
}

// Codes, as Confluent's API documents them.
const (
	codeSubjectNotFound    = 40401
	codeVersionNotFound    = 40402
	CodeSchemaNotFound     = 40403
	codeSubjectSoftDeleted = 40404
	codeSubjectNotDeleted  = 40405
	codeVersionSoftDeleted = 40406
	codeVersionNotDeleted  = 40407
	codeLevelNotConfigured = 40408
	codeModeNotConfigured  = 40409
	codeIncompatible       = 409
	CodeSchema             = 42201 // the schema cannot be read, or the request
	CodeVersion            = 42202
	codeLevel              = 42203
	codeMode               = 42204
	codeNotPermitted       = 42205
	codeReferenceExists    = 42206
	CodeSubject            = 42208
	CodeTooLarge           = 42209
	CodeRules              = 42210
	CodeStore              = 50001
	CodeUnavailable        = 50002 // the store does not answer in time
	textIncompatible       = "Schema being registered is incompatible with an earlier schema for subject %q, details: %v"
	textSubjectNotFound    = "Subject '%s' not found."
	textVersionNotFound    = "Version %d not found."
	// as Confluent writes it
	textSubjectSoftDeleted = "Subject '%s' was soft deleted.Set permanent=true to delete permanently"
	textSubjectNotDeleted  = "Subject '%s' was not deleted first before being permanently deleted"
	textVersionSoftDeleted = "Subject '%s' Version %s was soft deleted.Set permanent=true to delete permanently"
	textVersionNotDeleted  = "Subject '%s' Version %d was not deleted first before being permanently deleted"
	textReferenceExists    = "One or more references exist to the schema {subject=%s,version=%d}."
	textKept               = "Subject %q version %d has schema %d, which %s uses: remove the schema there first."
	textLevelNotConfigured = "Subject '%s' does not have subject-level compatibility configured"
	textModeNotConfigured  = "Subject '%s' does not have subject-level mode configured"
	textReadOnly           = "Subject %s is in read-only mode"
	textNotImport          = "Subject %s is not in import mode"
	textNotReadWrite       = "Subject %s is not in read-write mode"
	textNotNext            = "Version is not one more than previous version"
	textOverwrite          = "Overwrite new schema with id %d is not permitted."
	textImportWithSubjects = "Cannot import since found existing subjects"
	textVersionOutOfBounds = "The specified version '%s' is not a valid version id. Allowed values are between [1, 2^31-1] and the string \"latest\""
	textSchemaNotFound     = "Schema not found"
	textSchemaNumber       = "Schema %d not found"
	textTooLarge           = "The schema is larger than %d bytes"
	textTooManyReferences  = "A schema has at most %d references"
	textReferenceNotFound  = "The reference %q names version %d of subject %q, which is not there"
	textInvalidSchema      = "Invalid schema: %s"
)

func invalid(code int, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// plain says whether a name can be shown as it is.
func plain(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return false
		}
	}
	return true
}

// VersionOutOfBounds refuses what is no version.
func VersionOutOfBounds(s string) error {
	return invalid(CodeVersion, textVersionOutOfBounds, shortened(s))
}

// shortened bounds what is repeated to a caller.
func shortened(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
