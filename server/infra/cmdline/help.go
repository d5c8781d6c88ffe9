package cmdline

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/infra/config"
)

// helpCommand prints help for the command that its arguments name. Help needs no
// settings: they may be what is wrong.
func (p *Program) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "print help for a command", Hidden: true,
		RunE: func(_ *cobra.Command, words []string) error {
			c := p.Root
			for i, word := range words {
				next := child(c, word)
				if next == nil && c.HasAvailableSubCommands() {
					return Usagef("unknown command %.40q", strings.Join(words[:i+1], " "))
				}
				if next == nil { // an argument, which needs no help
					break
				}
				c = next
			}
			return c.Help()
		},
	}
}

func child(c *cobra.Command, name string) *cobra.Command {
	for _, sub := range c.Commands() {
		if sub.Name() == name {
			return sub
		}
	}
	return nil
}

// help prints what there is to know of a command.
func (p *Program) help(w io.Writer, of config.Program, c *cobra.Command) {
	if c == p.Root {
		p.rootHelp(w, of)
		return
	}
	list := leaves(c)
	for i, leaf := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s\n  %s\n%s", p.line(leaf), leaf.Short, leaf.Long)
	}
	if flags := c.LocalFlags(); c.Annotations[groupKey] == "" && flags.HasAvailableFlags() {
		fmt.Fprintf(w, "\nflags:\n%s", flags.FlagUsages())
	}
	fmt.Fprintf(w, "\n%s --help lists the settings, whose flags go before the command.\n", p.Root.Name())
}

// rootHelp lists all commands and settings.
func (p *Program) rootHelp(w io.Writer, of config.Program) {
	fmt.Fprintf(w, "%s\n\nusage:\n", p.Root.Long)
	if p.Root.Short != "" {
		p.list(w, []*cobra.Command{p.Root})
	}
	p.list(w, p.inGroup(""))
	fmt.Fprintf(w, "  %s help COMMAND, version, completion bash|zsh|fish|powershell\n", p.Root.Name())
	for _, g := range p.Root.Groups() {
		fmt.Fprintf(w, "\n%s\n", g.Title)
		p.list(w, p.inGroup(g.ID))
	}
	fmt.Fprint(w, "\nflags:\n")
	config.PrintFlags(w, of)
}

// inGroup lists the commands of a group of root's commands that do something.
func (p *Program) inGroup(id string) (list []*cobra.Command) {
	for _, c := range p.Root.Commands() {
		if c.GroupID == id && isListed(c) {
			list = append(list, leaves(c)...)
		}
	}
	return list
}

// list writes a line for each command.
func (p *Program) list(w io.Writer, commands []*cobra.Command) {
	const width = 48 // of all but the longest lines
	for _, c := range commands {
		fmt.Fprintf(w, "  %-*s  %s\n", width, p.line(c), c.Short)
	}
}

func isListed(c *cobra.Command) bool { return !c.Hidden && c.Name() != "completion" }

// line is how a command is called.
func (p *Program) line(c *cobra.Command) string {
	words := strings.TrimPrefix(c.CommandPath(), p.Root.Name())
	_, args, _ := strings.Cut(c.Use, " ")
	return strings.TrimSpace(p.Root.Name() + " [flags]" + words + " " + args)
}

// leaves lists the commands at and below a command that do something.
func leaves(c *cobra.Command) (list []*cobra.Command) {
	if c.Annotations[groupKey] == "" {
		list = append(list, c)
	}
	for _, sub := range c.Commands() {
		if isListed(sub) {
			list = append(list, leaves(sub)...)
		}
	}
	return list
}

const groupKey = "group"

// Group makes a command that does nothing without one of its subcommands.
func Group(name, short string, subcommands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: name, Short: short, Annotations: map[string]string{groupKey: "yes"},
		Args: cobra.ArbitraryArgs}
	g.AddCommand(subcommands...)
	g.RunE = func(*cobra.Command, []string) error {
		if len(subcommands) == 1 {
			return Usagef("%s %s is the one command on %[1]s", g.Name(), subcommands[0].Name())
		}
		path := g.CommandPath()[len(g.Root().Name())+1:]
		return Usagef("%s needs %s; %s help %s says what each does", path, alternatives(subcommands), g.Root().Name(), path)
	}
	return g
}

// alternatives lists the names of commands, those with subcommands along with these.
func alternatives(commands []*cobra.Command) string {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name())
		for _, sub := range c.Commands() {
			names = append(names, c.Name()+" "+sub.Name())
		}
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}
