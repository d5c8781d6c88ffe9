package config

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// parser parses the text of a setting into a field. Its errors continue a line that begins
// with the setting's name.
type parser func(s *Settings, value string) error

// text takes any text.
func text(field func(*Settings) *string) parser {
	return checked(field, func(string) error { return nil })
}

// checked takes text that passes a check.
func checked(field func(*Settings) *string, check func(string) error) parser {
	return func(s *Settings, value string) error {
		if err := check(value); err != nil {
			return err
		}
		*field(s) = value
		return nil
	}
}

func secret(field func(*Settings) *Secret) parser {
	return func(s *Settings, value string) error {
		*field(s) = Secret(value)
		return nil
	}
}

// list takes any items with commas between them; none if the text is empty.
func list(field func(*Settings) *[]string) parser {
	return func(s *Settings, value string) error {
		if value != "" {
			*field(s) = strings.Split(value, ",")
		}
		return nil
	}
}

// address takes host:port.
func address(field func(*Settings) *string) parser { return checked(field, checkAddress) }

// maybeAddress takes host:port or nothing.
func maybeAddress(field func(*Settings) *string) parser {
	return checked(field, func(value string) error {
		if value == "" {
			return nil
		}
		return checkAddress(value)
	})
}

func checkAddress(value string) error {
	if !isAddress(value) {
		return fmt.Errorf("must be host:port, not %.100q", value)
	}
	return nil
}

// isAddress reports whether a text is host:port with a port's number.
func isAddress(value string) bool {
	_, port, err := net.SplitHostPort(value)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func notEmpty(field func(*Settings) *string) parser {
	return checked(field, func(value string) error {
		if value == "" {
			return errors.New("must not be empty")
		}
		return nil
	})
}

// maxWorkerName is the length of the longest name of a worker.
const maxWorkerName = 64

// workerName checks a name that is a key in the store and the name of a static member on Kafka.
func workerName(value string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	foreign := func(r rune) bool { return !strings.ContainsRune(allowed, r) }
	if len(value) > maxWorkerName || strings.ContainsFunc(value, foreign) || value == "." || value == ".." {
		return fmt.Errorf("must be 1 to %d letters, digits, dots, hyphens and underscores", maxWorkerName)
	}
	return nil
}

// oneOf takes one of the given texts, of which an empty one is not named in errors.
func oneOf(field func(*Settings) *string, allowed ...string) parser {
	named := slices.DeleteFunc(slices.Clone(allowed), func(s string) bool { return s == "" })
	last := len(named) - 1
	return checked(field, func(value string) error {
		if slices.Contains(allowed, value) {
			return nil
		}
		return fmt.Errorf("must be %s or %s, not %.40q", strings.Join(named[:last], ", "), named[last], value)
	})
}

func onOff(field func(*Settings) *bool) parser {
	return func(s *Settings, value string) error {
		var word string
		if err := oneOf(func(*Settings) *string { return &word }, "on", "off")(s, value); err != nil {
			return err
		}
		*field(s) = word == "on"
		return nil
	}
}

func number(lowest, highest int, field func(*Settings) *int) parser {
	return func(s *Settings, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < lowest || n > highest {
			return fmt.Errorf("must be %d to %d, not %.40q", lowest, highest, value)
		}
		*field(s) = n
		return nil
	}
}
