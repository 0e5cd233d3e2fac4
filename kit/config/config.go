// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// EnvFile names the variable that holds the path of the file, as --config does.
const EnvFile = EnvPrefix + "CONFIG"

const fileFlag = "config"

// ErrInvalid is wrapped by every error of Load that the reader of the configuration
// has to fix.
var ErrInvalid = errors.New("invalid configuration")

// Spec describes the configuration of one program. T is a struct in which every field
// has a json name and is a text, bool, number, time.Duration, SecretFile, []string,
// map[string]string, or a struct of such.
type Spec[T any] struct {
	// APIVersion and Kind that the file has to carry. Required.
	APIVersion, Kind string
	// Default is the configuration without file, environment and flags.
	Default T
	// Aliases are variables without the prefix that set a key as well, such as LOG_LEVEL;
	// the variable with the prefix goes first.
	Aliases map[string]string
	// OtherEnv are HYPERFLEET_ variables that something else reads.
	OtherEnv []string
	// Help gives words to a key's flag.
	Help map[string]string
	// Validate checks the whole; its error should name keys, as ErrorAt does.
	Validate func(T) error
	// Environ is the environment. Default: os.Environ.
	Environ func() []string
}

// Loaded is a configuration and where it came from.
type Loaded[T any] struct {
	// Config is the configuration.
	Config T
	// Sources tells for each key that was set what set it: "file PATH", "env NAME" or
	// "flag --name". Keys that are not in it have their default.
	Sources map[string]string

	schema *schema
	values *koanf.Koanf
}

// ErrorAt is an error about one key.
func ErrorAt(key, format string, args ...any) error {
	return fmt.Errorf("%s: %w", key, fmt.Errorf(format, args...))
}

// AddFlags adds --config and a flag for each key to a program's flags.
func (s *Spec[T]) AddFlags(flags *pflag.FlagSet) error {
	schema, err := schemaOf(reflect.TypeFor[T]())
	if err != nil {
		return err
	}

	flags.String(fileFlag, "", "configuration file (env "+EnvFile+")")

	for _, l := range schema.leaves {
		usage := "sets " + l.key + " (env " + l.env() + ")"
		if help := s.Help[l.key]; help != "" {
			usage = help + "; " + usage
		}

		flag := flags.VarPF(&flagValue{leaf: l}, l.flag(), "", usage)
		if l.kind.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}

	return nil
}

// layer is what one place sets.
type layer struct {
	values map[string]any
	source map[string]string
}

func newLayer() layer { return layer{values: map[string]any{}, source: map[string]string{}} }

// Load reads the configuration. Flags may be nil; else AddFlags has been called on
// them, and they have been parsed.
func (s *Spec[T]) Load(flags *pflag.FlagSet) (*Loaded[T], error) {
	schema, err := schemaOf(reflect.TypeFor[T]())
	if err != nil {
		return nil, err
	}

	environ := s.environ()

	fromFile, fileErr := s.readFile(schema, filePath(flags, environ))
	fromEnv, envErr := s.readEnv(schema, environ)

	if err := errors.Join(fileErr, envErr); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}

	loaded := &Loaded[T]{Sources: map[string]string{}, schema: schema, values: koanf.New(".")}

	for _, layer := range []layer{defaults(schema, s.Default), fromFile, fromEnv, readFlags(schema, flags)} {
		if err := loaded.values.Load(confmap.Provider(layer.values, "."), nil); err != nil {
			return nil, fmt.Errorf("merge configuration: %w", err)
		}

		maps.Copy(loaded.Sources, layer.source)
	}

	return loaded, s.finish(loaded)
}

// finish fills the struct and validates it.
func (s *Spec[T]) finish(loaded *Loaded[T]) error {
	// Lists and maps are replaced, not merged into those of the default.
	var out T

	if err := loaded.values.UnmarshalWithConf("", &out, koanf.UnmarshalConf{Tag: "json"}); err != nil {
		return fmt.Errorf("decode configuration: %w", err)
	}

	loaded.Config = out

	if s.Validate == nil {
		return nil
	}

	if err := s.Validate(out); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}

	return nil
}

func (s *Spec[T]) environ() []string {
	if s.Environ != nil {
		return s.Environ()
	}

	return os.Environ()
}

// filePath is that of the flag, else that of the variable.
func filePath(flags *pflag.FlagSet, environ []string) string {
	if flags != nil {
		if path, err := flags.GetString(fileFlag); err == nil && path != "" {
			return path
		}
	}

	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); name == EnvFile {
			return value
		}
	}

	return ""
}

// defaults takes the keys out of the default struct.
func defaults(schema *schema, config any) layer {
	out := newLayer()
	root := reflect.ValueOf(config)

	var walk func(prefix string, value reflect.Value)

	walk = func(prefix string, value reflect.Value) {
		for i, field := range reflect.VisibleFields(value.Type()) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			key := prefix + name

			if slices.Contains(schema.groups, key) {
				walk(key+".", value.Field(i))
			} else {
				out.values[key] = value.Field(i).Interface()
			}
		}
	}

	walk("", root)

	return out
}

func readFlags(schema *schema, flags *pflag.FlagSet) layer {
	out := newLayer()
	if flags == nil {
		return out
	}

	for _, l := range schema.leaves {
		flag := flags.Lookup(l.flag())
		if flag == nil || !flag.Changed {
			continue
		}

		if value, ok := flag.Value.(*flagValue); ok {
			out.values[l.key], out.source[l.key] = value.value, "flag --"+l.flag()
		}
	}

	return out
}

// flagValue is one key's flag.
type flagValue struct {
	leaf  leaf
	text  string
	value any
}

// String returns the value as it was given.
func (v *flagValue) String() string { return v.text }

// Type is what the help text shows after the flag's name.
func (v *flagValue) Type() string {
	switch v.leaf.kind.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Slice:
		return "a,b"
	case reflect.Map:
		return "k=v,k=v"
	case reflect.String:
		return "text"
	default:
		if strings.HasSuffix(v.leaf.kind.String(), "Duration") {
			return "duration"
		}

		return "number"
	}
}

// Set takes a value; given again, lists and maps grow, and others change.
func (v *flagValue) Set(text string) error {
	if kind := v.leaf.kind.Kind(); v.value != nil && (kind == reflect.Slice || kind == reflect.Map) {
		text = v.text + "," + text
	}

	value, err := v.leaf.fromText(text)
	if err != nil {
		return err
	}

	v.text, v.value = text, value

	return nil
}
