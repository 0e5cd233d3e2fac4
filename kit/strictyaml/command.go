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

// NewCommand returns the subcommand `config` of a program, with `config validate` and `config
// print`. Both accept the program's own flags.
func (s *Spec[T]) NewCommand() (*cobra.Command, error) {
	parent := &cobra.Command{Use: "config", Short: "Validate and print the configuration"}

	validate := &cobra.Command{
		Use: "validate", Args: cobra.NoArgs,
		Short: "Validate the configuration from file, environment and flags, and print all problems",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := s.Load(cmd.Flags()); err != nil {
				return err
			}

			_, err := fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")

			return err
		},
	}

	var isRedacted, showsSources bool

	show := &cobra.Command{
		Use: "print", Args: cobra.NoArgs,
		Short: "Print the configuration from file, environment and flags, and the source of each value",
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, sourceByKey, err := s.load(cmd.Flags())
			if err != nil {
				return err
			}

			if isRedacted {
				s.redact(config)
			}

			if showsSources {
				return s.writeSources(cmd.OutOrStdout(), config, sourceByKey)
			}

			return writeWithSources(cmd.OutOrStdout(), config, sourceByKey)
		},
	}

	if err := errors.Join(s.AddFlags(validate.Flags()), s.AddFlags(show.Flags())); err != nil {
		return nil, err
	}

	show.Flags().BoolVar(&isRedacted, "redacted", true, "redact passwords in URLs")
	show.Flags().BoolVar(&showsSources, "sources", false, "print one line for each key, with the source of its value")
	parent.AddCommand(validate, show)

	return parent, nil
}

// redact redacts passwords in URLs in all keys that a variable can set.
func (s *Spec[T]) redact(config *T) {
	root := reflect.ValueOf(config).Elem()

	for _, l := range s.leaves() {
		switch value := l.get(root).(type) {
		case string:
			l.set(root, redactPassword(value))
		case []string:
			out := slices.Clone(value)
			for i := range out {
				out[i] = redactPassword(out[i])
			}

			l.set(root, out)
		case map[string]string:
			out := maps.Clone(value)
			for key := range out {
				out[key] = redactPassword(out[key])
			}

			l.set(root, out)
		}
	}
}

// redactPassword redacts the password in a text that is a URL. If the text looks like a URL but
// cannot be parsed, the whole text is redacted.
func redactPassword(text string) string {
	if !strings.Contains(text, "://") || !strings.Contains(text, "@") {
		return text
	}

	return log.RedactURL(text)
}

// writeWithSources writes the configuration with a comment at each key whose value is not the
// default. The comment names the source of the value.
func writeWithSources(w io.Writer, config any, sourceByKey map[string]string) error {
	var document yaml.Node
	if err := document.Encode(config); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}

	addComments(&document, "", sourceByKey)

	return Write(w, &document)
}

// addComments adds the sources of the values of a mapping and its nested mappings as comments: after a scalar value, and
// after the key of a list or a mapping.
func addComments(mapping *yaml.Node, prefix string, sourceByKey map[string]string) {
	if mapping.Kind != yaml.MappingNode {
		return
	}

	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]

		target := key
		if value.Kind == yaml.ScalarNode {
			target = value
		}

		target.LineComment = sourceByKey[prefix+key.Value]
		addComments(value, prefix+key.Value+".", sourceByKey)
	}
}

// writeSources writes one line for each key, with its value and the source of the value.
func (s *Spec[T]) writeSources(w io.Writer, config *T, sourceByKey map[string]string) error {
	root := reflect.ValueOf(config).Elem()

	for _, l := range s.leaves() {
		source := sourceByKey[l.key]
		if source == "" {
			source = "default"
		}

		if _, err := fmt.Fprintf(w, "%s = %v (%s)\n", l.key, l.get(root), source); err != nil {
			return err
		}
	}

	return nil
}
