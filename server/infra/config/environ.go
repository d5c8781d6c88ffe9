package config

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// prefix is what the names of all settings begin with.
const prefix = "PARLEY_"

// foreign are the names with our prefix that are none of our settings and may be in the
// environment all the same: those of the project's tests and tools, which start the
// programs, and those that Kubernetes makes of the name of a service, such as
// PARLEY_SERVICE_HOST and PARLEY_PORT_8080_TCP.
var foreign = regexp.MustCompile(
	`^PARLEY_(TEST_.*|EXPLORE|EXPLORE_.*|ENGINES_.*|CONSUME_.*|KILLS|DAMAGES|DISK_(FAULTS?|FLIP)|GATES|` +
		`TOPIC_(OPERATIONS|KILLS)|PUBLISH_LOSSES|UPGRADES|RECORDS|REBALANCES|SCHEMA_(EDITS|SEED|LEVELS|MISTAKES)|KAFKA_AWAY|PYTHON|` +
		`SECURITY_MISTAKES|BUILDS|TIMINGS|CONFORMANCE|SCENARIOS|SBOM|` +
		`(.*_)?SERVICE_(HOST|PORT|PORT_.*)|(.*_)?PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)$`)

// servicePort is the one name of Kubernetes whose value must be checked, too.
var servicePort = regexp.MustCompile(`^PARLEY_(.*_)?PORT=(tcp|udp|sctp)://`)

// readEnviron returns the settings in an environment. A name with our prefix that is no
// setting is a mistake that would otherwise show as a setting without effect.
func readEnviron(environ []string) (map[string]string, error) {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if runtime.GOOS == "windows" { // there, case does not count
			name = strings.ToUpper(name)
		}
		if !strings.HasPrefix(name, prefix) || value == "" {
			continue
		}
		if !isSetting(name) {
			if foreign.MatchString(name) || servicePort.MatchString(entry) {
				continue
			}
			return nil, fmt.Errorf("there is no setting %.80s in the environment%s", name, suggestion(name, names()))
		}
		if _, before := env[name]; !before {
			env[name] = value
		}
	}
	return env, nil
}

// names lists the names of all settings.
func names() []string {
	list := make([]string, len(table))
	for i, s := range table {
		list[i] = s.Name
	}
	return list
}

// ExplainFlag turns an error of parsing flags into a line that names the flag that the user
// may have meant.
func (f Flags) ExplainFlag(err error) error {
	var (
		unknown *pflag.NotExistError
		lacking *pflag.ValueRequiredError
	)
	switch {
	case errors.As(err, &lacking):
		return fmt.Errorf("flag needs an argument: -%.80s", lacking.GetSpecifiedName())
	case !errors.As(err, &unknown):
		return err
	}
	name := unknown.GetSpecifiedName()
	var list []string
	for _, s := range Table(f.program) {
		if !s.Secret {
			list = append(list, "--"+s.Flag)
		}
		if s.Secret && strings.EqualFold(strings.ReplaceAll(name, "-", "_"), strings.TrimPrefix(s.Name, prefix)) {
			return fmt.Errorf("flag provided but not defined: -%.80s; others could see it there: set %s", name, s.Name)
		}
	}
	return fmt.Errorf("flag provided but not defined: -%.80s%s", name, suggestion("--"+name, list))
}

// suggestion names the item of a list that is most like a name, if one is like it.
func suggestion(name string, list []string) string {
	if len(name) > 80 {
		return ""
	}
	best, nearest := 1+len(name)/6, ""
	for _, s := range list {
		if d := distance(name, s); d <= best && (d < best || nearest == "") {
			best, nearest = d, s
		}
	}
	if nearest == "" {
		return ""
	}
	return " (did you mean " + nearest + "?)"
}

// distance is how many characters must be put in, left out or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], slices.Min([]int{row[j+1] + 1, row[j] + 1, diagonal + cost})
		}
	}
	return row[len(b)]
}
