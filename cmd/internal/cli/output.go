// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Formats of --output. Each command supports some of them.
const (
	// OutputTable and OutputText are for people. OutputWide is a table with more columns.
	OutputTable = "table"
	OutputWide  = "wide"
	OutputText  = "text"
	// OutputName is one line for each object, with the name that ObjectName returns.
	OutputName = "name"
	OutputJSON = "json"
	OutputYAML = "yaml"
)

// Output is the flag --output of a command. It implements pflag.Value.
type Output struct {
	format  string
	formats []string
}

// AddFlag adds the flag to a command. The command supports the given formats, and the first one is its
// default.
func (o *Output) AddFlag(cmd *cobra.Command, formats ...string) {
	o.format, o.formats = formats[0], formats
	cmd.Flags().VarP(o, "output", "o", "output format: "+english.WordSeries(formats, "or"))

	err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag has a completion already
	}
}

// String returns the format.
func (o *Output) String() string { return o.format }

// Set sets the format. It returns a usage error if the command does not support the format.
func (o *Output) Set(format string) error {
	if !slices.Contains(o.formats, format) {
		return Usagef("use %s", english.WordSeries(o.formats, "or"))
	}

	o.format = format

	return nil
}

// Type returns the type of the flag in help texts.
func (o *Output) Type() string { return "string" }

// IsForPeople reports whether the format is text or a table.
func (o *Output) IsForPeople() bool {
	return slices.Contains([]string{OutputTable, OutputWide, OutputText}, o.format)
}

// Content is what a command prints. The command sets only the fields for the formats that it supports.
type Content struct {
	// Data is printed as JSON or YAML, with the names of the JSON fields.
	Data any
	// Names are the names of the objects.
	Names []string
	// Print prints the text or the table. isWide is true for OutputWide.
	Print func(out io.Writer, isWide bool) error
}

// Print prints the content in the format of the flag.
func (o *Output) Print(out io.Writer, content Content) error {
	var err error

	switch o.format {
	case OutputJSON:
		encoder := json.NewEncoder(log.EscapeUnprintable(out))
		encoder.SetEscapeHTML(false) // messages and expressions contain & and <
		encoder.SetIndent("", "  ")
		err = encoder.Encode(content.Data)
	case OutputYAML:
		var text []byte
		if text, err = yaml.Marshal(content.Data); err == nil {
			_, err = out.Write(text)
		}
	case OutputName:
		for _, name := range content.Names {
			if _, err = fmt.Fprintln(out, name); err != nil {
				break
			}
		}
	default:
		err = content.Print(out, o.format == OutputWide)
	}

	if err != nil {
		return fmt.Errorf("print %s: %w", o.format, err)
	}

	return nil
}

// Sanitized returns a Content.Print that prints what write writes, without control characters.
func Sanitized(write func(io.Writer) error) func(io.Writer, bool) error {
	return func(out io.Writer, _ bool) error {
		var text strings.Builder
		if err := write(&text); err != nil {
			return err
		}

		_, err := io.WriteString(out, Sanitize(text.String()))

		return err
	}
}

// ObjectName returns the name of an object as kubectl prints it, such as runnerjob.hyperfleet.io/build-7.
func ObjectName(group, kind, name string) string {
	return strings.ToLower(kind) + "." + group + "/" + name
}

// PrintTable prints a table. It removes terminal control sequences from the cells, and prints a dash for an
// empty cell, except in the last column. It omits the columns with Wide unless isWide is true.
func PrintTable[R any](out io.Writer, rows []R, columns []screen.Column[R], isWide bool) error {
	shown := slices.DeleteFunc(slices.Clone(columns), func(c screen.Column[R]) bool { return c.Wide && !isWide })

	for i := range shown {
		cell := shown[i].Cell
		shown[i].Cell = func(row R) string {
			text := SanitizeLine(cell(row))
			if text == "" && i < len(shown)-1 {
				return "-"
			}

			return text
		}
	}

	_, err := io.WriteString(out, strings.Join(screen.Table(rows, shown, math.MaxInt), "\n")+"\n")

	return err
}
