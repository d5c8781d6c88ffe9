// Package identity groups the packages that authenticate users. It has no code of its own:
//
//	identifier   e-mail addresses and phone numbers, and whose they are
//	otp          one-time codes
//	sender       the ways of a code to a person: log line, SMTP, webhook
//	session      sessions and their refresh tokens
//	signin       the three put together: codes and foreign tokens become sessions
//	securitylog  what happened to accounts, for those who watch over them
//
// An access token, once issued, is judged by package auth alone.
package identity
