// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/config"
)

const fileFlag = "config"

// Spec describes the configuration of one program: a file, over that HYPERFLEET_*
// variables, over those flags. Each key that is a text, bool, number, duration, list of
// texts or map of texts has a variable and a flag: clients.hyperfleet_api.base_url is
// HYPERFLEET_CLIENTS_HYPERFLEET_API_BASE_URL and --clients-hyperfleet-api-base-url.
// Variables that fit no key are not looked at: Kubernetes sets some for each service.
type Spec[T any] struct {
	// Default is what the file is read over.
	Default T
	// EnvFile names the variable with the path of the file, as --config does.
	EnvFile string
	// Required says that there has to be a file.
	Required bool
	// Aliases are further variables, by the key they set; those of the key itself go first.
	Aliases map[string]string
	// Help gives words to a key's flag.
	Help map[string]string
	// Validate checks the whole; it reports with ErrorAt, joined by errors.Join, so that
	// the place of the key is said.
	Validate func(*T) error
	// Environ is the environment. Default: os.Environ.
	Environ func() []string
}

// KeyError is an error about one key.
type KeyError struct {
	Path Path
	Err  error
}

// Error is the key and the error.
func (e *KeyError) Error() string { return e.Path.String() + ": " + e.Err.Error() }

// Unwrap is the error without the key.
func (e *KeyError) Unwrap() error { return e.Err }

// ErrorAt is an error about one key, such as log.level; lists have indexes of their own:
// use a KeyError for what is in them.
func ErrorAt(key, format string, args ...any) error {
	path := Path{}
	for step := range strings.SplitSeq(key, ".") {
		path = append(path, step)
	}

	return &KeyError{Path: path, Err: fmt.Errorf(format, args...)}
}

// leaf is one key that a variable or a flag may set.
type leaf struct {
	key   string
	index [][]int
	kind  reflect.Type
}

func (l leaf) flag() string {
	return strings.ToLower(strings.NewReplacer(".", "-", "_", "-").Replace(kebab(l.key)))
}

func (l leaf) env() string {
	return config.EnvPrefix + strings.ToUpper(strings.ReplaceAll(l.flag(), "-", "_"))
}

// kebab puts a dash before the capitals inside a word: frameworkVersion, framework-Version.
func kebab(key string) string {
	var out strings.Builder

	for i, c := range key {
		if i > 0 && c >= 'A' && c <= 'Z' && key[i-1] >= 'a' && key[i-1] <= 'z' {
			out.WriteByte('-')
		}

		out.WriteRune(c)
	}

	return out.String()
}

// set puts a value where the key belongs; optional groups on the way are made.
func (l leaf) set(root reflect.Value, value any) {
	at := root

	for _, index := range l.index {
		if at.Kind() == reflect.Pointer {
			if at.IsNil() {
				at.Set(reflect.New(at.Type().Elem()))
			}

			at = at.Elem()
		}

		at = at.FieldByIndex(index)
	}

	if at.Kind() == reflect.Pointer {
		at.Set(reflect.New(at.Type().Elem()))
		at = at.Elem()
	}

	at.Set(reflect.ValueOf(value).Convert(at.Type()))
}

// leavesOf are the keys of a struct; lists of structs and free values have none.
func leavesOf(kind reflect.Type, prefix string, index [][]int) []leaf {
	var leaves []leaf

	for i := range kind.NumField() {
		field := kind.Field(i)

		name := fieldName(field)
		if name == "" {
			continue
		}

		fieldType := field.Type
		if fieldType.Kind() == reflect.Pointer {
			fieldType = fieldType.Elem()
		}

		path := append(slices.Clone(index), []int{i})

		switch {
		case config.Settable(fieldType):
			leaves = append(leaves, leaf{key: prefix + name, index: path, kind: fieldType})
		case fieldType.Kind() == reflect.Struct:
			leaves = append(leaves, leavesOf(fieldType, prefix+name+".", path)...)
		}
	}

	return leaves
}

// AddFlags adds --config and a flag for each key.
func (s *Spec[T]) AddFlags(flags *pflag.FlagSet) error {
	usage := "configuration file"
	if s.EnvFile != "" {
		usage += " (env " + s.EnvFile + ")"
	}

	flags.String(fileFlag, "", usage)

	for _, l := range leavesOf(reflect.TypeFor[T](), "", nil) {
		if flags.Lookup(l.flag()) != nil {
			return fmt.Errorf("key %s: there is a flag --%s already", l.key, l.flag())
		}

		usage := "sets " + l.key + " (env " + l.env() + ")"
		if help := s.Help[l.key]; help != "" {
			usage = help + "; " + usage
		}

		flag := flags.VarPF(&flagValue{kind: l.kind}, l.flag(), "", usage)
		if l.kind.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}

	return nil
}

// Load reads the configuration. Flags may be nil; else AddFlags was called on them and
// they are parsed. Everything wrong is in the error, which is of type Problems.
func (s *Spec[T]) Load(flags *pflag.FlagSet) (*T, error) {
	environ := map[string]string{}

	for _, entry := range s.environ() {
		if name, value, ok := strings.Cut(entry, "="); ok {
			environ[name] = value
		}
	}

	out := s.Default

	doc, err := s.readFile(flags, environ, &out)
	problems := problemsOf(err)

	if err != nil && problems == nil {
		return nil, err
	}

	from := map[string]string{}
	root := reflect.ValueOf(&out).Elem()

	for _, l := range leavesOf(reflect.TypeFor[T](), "", nil) {
		problems = append(problems, s.override(l, root, flags, environ, from)...)
	}

	if len(problems) == 0 && s.Validate != nil {
		problems = placed(s.Validate(&out), doc, from)
	}

	return &out, problems.Err()
}

func (s *Spec[T]) environ() []string {
	if s.Environ != nil {
		return s.Environ()
	}

	return os.Environ()
}

func (s *Spec[T]) readFile(flags *pflag.FlagSet, environ map[string]string, out *T) (*Document, error) {
	path := environ[s.EnvFile]

	if flags != nil {
		if given, err := flags.GetString(fileFlag); err == nil && given != "" {
			path = given
		}
	}

	if path == "" {
		if s.Required {
			return nil, Problems{{File: "--" + fileFlag, Message: "no configuration file is given"}}
		}

		return &Document{file: "configuration", root: &node{}}, nil
	}

	data, err := readFile(path)
	if err != nil {
		return nil, Problems{{File: path, Message: err.Error()}}
	}

	doc, err := Parse(path, data)
	if err != nil {
		return nil, err
	}

	err = doc.Decode(out)

	return doc, err
}

// readFile reads at most what Parse takes.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read

	data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}

	return data, nil
}

// override sets a key from its variable or flag.
func (s *Spec[T]) override(
	l leaf, root reflect.Value, flags *pflag.FlagSet, environ, from map[string]string,
) Problems {
	name := l.env()

	text, ok := environ[name]
	if !ok && s.Aliases[l.key] != "" {
		name = s.Aliases[l.key]
		text, ok = environ[name]
	}

	var problems Problems

	if ok {
		value, err := config.ParseText(l.kind, text)
		if err != nil {
			problems = Problems{{File: "env " + name, Path: l.key, Message: err.Error()}}
		} else {
			l.set(root, value)
			from[l.key] = "env " + name
		}
	}

	if flags == nil {
		return problems
	}

	if flag := flags.Lookup(l.flag()); flag != nil && flag.Changed {
		if value, ok := flag.Value.(*flagValue); ok {
			l.set(root, value.value)
			from[l.key] = "flag --" + l.flag()
			// What the flag goes over need not be right.
			problems = nil
		}
	}

	return problems
}

// placed turns the errors of Validate into problems with their places.
func placed(err error, doc *Document, from map[string]string) Problems {
	if err == nil {
		return nil
	}

	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var problems Problems
		for _, one := range joined.Unwrap() {
			problems = append(problems, placed(one, doc, from)...)
		}

		return problems
	}

	var at *KeyError
	if !errors.As(err, &at) {
		return Problems{{File: doc.file, Message: err.Error()}}
	}

	problem := doc.At(at.Path, "%v", at.Err)
	if source := from[problem.Path]; source != "" {
		problem.File, problem.Line, problem.Column = source, 0, 0
	}

	return Problems{problem}
}

func problemsOf(err error) Problems {
	var problems Problems

	errors.As(err, &problems)

	return problems
}

// Write prints a configuration as a file that gives the same again.
func Write(w io.Writer, value any) error {
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)

	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}

	return encoder.Close()
}

// flagValue is one key's flag.
type flagValue struct {
	kind  reflect.Type
	text  string
	value any
}

// String returns the value as it was given.
func (v *flagValue) String() string { return v.text }

// Type is what the help text shows after the flag's name.
func (v *flagValue) Type() string {
	switch kind := v.kind.Kind(); {
	case kind == reflect.Bool:
		return "bool"
	case kind == reflect.Slice:
		return "a,b"
	case kind == reflect.Map:
		return "k=v,k=v"
	case kind == reflect.String:
		return "text"
	case strings.HasSuffix(v.kind.String(), "Duration"):
		return "duration"
	default:
		return "number"
	}
}

// Set takes a value; given again, lists and maps grow, and others change.
func (v *flagValue) Set(text string) error {
	if kind := v.kind.Kind(); v.value != nil && (kind == reflect.Slice || kind == reflect.Map) {
		text = v.text + "," + text
	}

	value, err := config.ParseText(v.kind, text)
	if err != nil {
		return err
	}

	v.text, v.value = text, value

	return nil
}
