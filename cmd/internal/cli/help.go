// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

// wrapHelp makes the help of all commands fit the terminal. Help that does not go to a terminal stays as it is.
func wrapHelp(root *cobra.Command) {
	printHelp := root.HelpFunc()

	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		out, _ := cmd.OutOrStdout().(*os.File)
		if out == nil || !term.IsTerminal(int(out.Fd())) {
			printHelp(cmd, args)

			return
		}

		var text bytes.Buffer

		cmd.SetOut(&text)
		printHelp(cmd, args)
		cmd.SetOut(out)

		width, _ := screen.Size(out)
		fmt.Fprint(out, WrapHelp(text.String(), width))
	})
}

// helpTitle is the title of a section of help, such as "Global Flags:".
var helpTitle = regexp.MustCompile(`^[A-Z][a-z]+(?: [A-Z][a-z]+)?:$`)

// WrapHelp wraps the text of a command's help to a width. It joins the lines of a paragraph before. It does not
// join lines that begin with spaces, and does not wrap examples, which users copy.
func WrapHelp(text string, width int) string {
	var (
		out, paragraph []string
		isExample      bool
	)

	flush := func() {
		if len(paragraph) > 0 {
			out = append(out, screen.Wrap(strings.Join(paragraph, " "), width)...)
			paragraph = nil
		}
	}

	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")

		switch {
		case helpTitle.MatchString(line):
			flush()

			out = append(out, line)
			isExample = line == "Examples:"
		case line == "" || isExample:
			flush()

			out = append(out, line)
		case !strings.HasPrefix(line, " "):
			paragraph = append(paragraph, line)
		default:
			flush()

			out = append(out, screen.Wrap(line, width)...)
		}
	}

	flush()

	return strings.Join(out, "\n") + "\n"
}

// FitTerminal wraps the lines of a text at the width of the terminal, if out is one.
func FitTerminal(out io.Writer, text string) string {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return text
	}

	width, _ := screen.Size(file)

	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, screen.Wrap(line, width)...)
	}

	return strings.Join(lines, "\n")
}
