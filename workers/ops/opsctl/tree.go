package opsctl

import (
	"context"
	"flag"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/infra/cmdline"
)

// GroupID is the group of the commands in a program's tree.
const GroupID = "operators"

// AddTo adds the commands to a program's tree, under a title. They read their flags
// themselves; run runs one of them with its words and what follows.
func AddTo(root *cobra.Command, title string, run func(ctx context.Context, args []string) error) {
	root.AddGroup(&cobra.Group{ID: GroupID, Title: title})
	for _, c := range commands(root.Name(), run) {
		c.GroupID = GroupID
		root.AddCommand(c)
	}
}

func commands(program string, run func(ctx context.Context, args []string) error) (list []*cobra.Command) {
	for _, name := range slices.Sorted(maps.Keys(commandGroups)) {
		verbs := commandGroups[name]
		if cmd, ok := verbs[""]; ok {
			list = append(list, leaf(program, cmd, run, name))
			continue
		}
		var subcommands []*cobra.Command
		for _, verb := range slices.Sorted(maps.Keys(verbs)) {
			subcommands = append(subcommands, leaf(program, verbs[verb], run, name, verb))
		}
		g := cmdline.Group(name, "", subcommands...)
		g.RunE = func(c *cobra.Command, args []string) error { return run(c.Context(), append([]string{name}, args...)) }
		list = append(list, g)
	}
	return list
}

func leaf(program string, cmd command, run func(context.Context, []string) error, words ...string) *cobra.Command {
	c := &cobra.Command{
		Use: strings.TrimSpace(words[len(words)-1] + " " + cmd.args), Short: cmd.about, DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			if asksForHelp(args) {
				return c.Help()
			}
			return run(c.Context(), append(slices.Clone(words), args...))
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return cmd.flagNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.SetHelpFunc(func(c *cobra.Command, _ []string) { Help(c.OutOrStdout(), program, words) })
	return c
}

// asksForHelp reports whether a flag before -- does.
func asksForHelp(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.ContainsFunc(args, func(s string) bool { return s == "-h" || s == "-help" || s == "--help" })
}

func (c command) flagNames() (list []string) {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	c.bind(fs)
	fs.VisitAll(func(f *flag.Flag) { list = append(list, "--"+f.Name+"\t"+f.Usage) })
	return list
}
