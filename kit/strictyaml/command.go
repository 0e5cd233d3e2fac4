// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Command makes the subcommand `config` of a program: `config validate` and
// `config print`. Both take the program's own flags.
func (s *Spec[T]) Command() (*cobra.Command, error) {
	parent := &cobra.Command{Use: "config", Short: "Check and show the configuration"}

	validate := &cobra.Command{
		Use: "validate", Short: "Check file, environment and flags; say all that is wrong", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := s.Load(cmd.Flags()); err != nil {
				return err
			}

			_, err := fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")

			return err
		},
	}

	var redacted, sources bool

	show := &cobra.Command{
		Use: "print", Args: cobra.NoArgs,
		Short: "Print the configuration that file, environment and flags give, and which of them has set what",
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, from, err := s.load(cmd.Flags())
			if err != nil {
				return err
			}

			if redacted {
				s.redact(config)
			}

			if sources {
				return s.writeSources(cmd.OutOrStdout(), config, from)
			}

			return writeFrom(cmd.OutOrStdout(), config, from)
		},
	}

	if err := errors.Join(s.AddFlags(validate.Flags()), s.AddFlags(show.Flags())); err != nil {
		return nil, err
	}

	show.Flags().BoolVar(&redacted, "redacted", true, "leave out passwords in URLs")
	show.Flags().BoolVar(&sources, "sources", false, "print one line for each key, with what has set it")
	parent.AddCommand(validate, show)

	return parent, nil
}

// redact takes passwords out of URLs in all keys that a variable can set.
func (s *Spec[T]) redact(config *T) {
	root := reflect.ValueOf(config).Elem()

	for _, l := range s.leaves() {
		switch value := l.get(root).(type) {
		case string:
			l.set(root, withoutPassword(value))
		case []string:
			out := slices.Clone(value)
			for i := range out {
				out[i] = withoutPassword(out[i])
			}

			l.set(root, out)
		case map[string]string:
			out := maps.Clone(value)
			for key := range out {
				out[key] = withoutPassword(out[key])
			}

			l.set(root, out)
		}
	}
}

// withoutPassword is a text without the password of a URL. One that may be a URL but does
// not parse is left out as a whole.
func withoutPassword(text string) string {
	if !strings.Contains(text, "://") || !strings.Contains(text, "@") {
		return text
	}

	return log.URL(text)
}

// writeFrom is Write with a comment at each key that something else than the default has set.
func writeFrom(w io.Writer, config any, from map[string]string) error {
	var document yaml.Node
	if err := document.Encode(config); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}

	comment(&document, "", from)

	return Write(w, &document)
}

// comment puts the comments at the keys of a mapping and of those inside it.
func comment(at *yaml.Node, prefix string, from map[string]string) {
	if at.Kind != yaml.MappingNode {
		return
	}

	for i := 0; i+1 < len(at.Content); i += 2 {
		key, value := at.Content[i], at.Content[i+1]

		if source := from[prefix+key.Value]; source != "" {
			if value.Kind == yaml.ScalarNode {
				key = value
			}

			key.LineComment = source
		}

		comment(value, prefix+at.Content[i].Value+".", from)
	}
}

// writeSources writes a line for each key: its value and what has set it.
func (s *Spec[T]) writeSources(w io.Writer, config *T, from map[string]string) error {
	root := reflect.ValueOf(config).Elem()

	for _, l := range s.leaves() {
		source := from[l.key]
		if source == "" {
			source = "default"
		}

		if _, err := fmt.Fprintf(w, "%s = %v (%s)\n", l.key, l.get(root), source); err != nil {
			return err
		}
	}

	return nil
}
