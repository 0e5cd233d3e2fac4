// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

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
		Use: "print", Short: "Print the configuration that file, environment and flags give", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := s.Load(cmd.Flags())
			if err != nil {
				return err
			}

			if sources {
				return loaded.PrintSources(cmd.OutOrStdout(), redacted)
			}

			return loaded.Print(cmd.OutOrStdout(), s.APIVersion, s.Kind, redacted)
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

// Print writes the configuration as a file that gives the same configuration again.
// SecretFile fields show their path: the secret is not part of the configuration.
func (l *Loaded[T]) Print(w io.Writer, apiVersion, kind string, redacted bool) error {
	tree := map[string]any{keyAPIVersion: apiVersion, keyKind: kind}

	for _, leaf := range l.schema.leaves {
		path := strings.Split(leaf.key, ".")
		at := tree

		for _, group := range path[:len(path)-1] {
			next, ok := at[group].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[group] = next
			}

			at = next
		}

		at[path[len(path)-1]] = printable(l.values.Get(leaf.key), redacted)
	}

	data, err := yaml.Marshal(tree)
	if err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}

	_, err = w.Write(data)

	return err
}

// PrintSources writes a line for each key: its value and what has set it.
func (l *Loaded[T]) PrintSources(w io.Writer, redacted bool) error {
	for _, leaf := range l.schema.leaves {
		source := l.Sources[leaf.key]
		if source == "" {
			source = "default"
		}

		if _, err := fmt.Fprintf(w, "%s = %v (%s)\n", leaf.key, printable(l.values.Get(leaf.key), redacted), source); err != nil {
			return err
		}
	}

	return nil
}

// printable is a value as the file has it.
func printable(value any, redacted bool) any {
	switch typed := value.(type) {
	case time.Duration:
		return typed.String()
	case []string:
		out := slices.Clone(typed)
		for i := range out {
			out[i] = redact(out[i], redacted)
		}

		return out
	case map[string]string:
		out := make(map[string]string, len(typed))
		for key, text := range typed {
			out[key] = redact(text, redacted)
		}

		return out
	}

	if reflected := reflect.ValueOf(value); reflected.Kind() == reflect.String {
		return redact(reflected.String(), redacted)
	}

	return value
}

// redact takes the password out of a URL. A text that may be one but does not parse
// is left out as a whole.
func redact(text string, redacted bool) string {
	if !redacted || !strings.Contains(text, "://") || !strings.Contains(text, "@") {
		return text
	}

	return log.URL(text)
}
