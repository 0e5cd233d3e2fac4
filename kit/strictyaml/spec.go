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
)

// Keys of a file that say what it is; nothing else can set them.
const (
	keyAPIVersion = "apiVersion"
	keyKind       = "kind"
)

// Spec describes the configuration of one program: a file, over that HYPERFLEET_*
// variables, over those flags. Each key that is a text, bool, number, duration, list of
// texts or map of texts has a variable and a flag: clients.hyperfleet_api.base_url is
// HYPERFLEET_CLIENTS_HYPERFLEET_API_BASE_URL and --clients-hyperfleet-api-base-url. Lists
// and maps are replaced as a whole; in variables and flags they are a,b and k=v,k2=v2.
type Spec[T any] struct {
	// APIVersion and Kind that the file has to carry, in fields of that name. Empty: none.
	APIVersion, Kind string
	// Default is what the file is read over.
	Default T
	// EnvFile names the variable with the path of the file, as --config does.
	EnvFile string
	// Required says that there has to be a file.
	Required bool
	// OwnsPrefix says that HYPERFLEET_* variables that fit no key are mistakes, but for
	// OtherEnv, which something else reads, and those that Kubernetes sets for services.
	// Else they are not looked at.
	OwnsPrefix bool
	OtherEnv   []string
	// Aliases are further variables, by the key they set; those of the key itself go first.
	Aliases map[string]string
	// Words are names with capitals inside, such as MetalLB, that flags and variables have
	// as one word.
	Words []string
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
	return &KeyError{Path: pathOf(key), Err: fmt.Errorf(format, args...)}
}

func pathOf(key string) Path {
	path := Path{}
	for step := range strings.SplitSeq(key, ".") {
		path = append(path, step)
	}

	return path
}

// Load reads the configuration. Flags may be nil; else AddFlags was called on them and
// they are parsed. Everything wrong is in the error, which is of type Problems.
func (s *Spec[T]) Load(flags *pflag.FlagSet) (*T, error) {
	out, _, err := s.load(flags)

	return out, err
}

// Check says what is wrong with the configuration, as Load does.
func (s *Spec[T]) Check(flags *pflag.FlagSet) error {
	_, err := s.Load(flags)

	return err
}

// load says as well which keys do not have their default: "file PATH", "env NAME" or
// "flag --name".
func (s *Spec[T]) load(flags *pflag.FlagSet) (*T, map[string]string, error) {
	environ, leaves := s.environ(), s.leaves()
	out := s.Default

	doc, err := s.readFile(flags, environ, &out)
	problems := problemsOf(err)

	if err != nil && problems == nil {
		return nil, nil, err
	}

	problems = append(problems, s.unknownVariables(leaves, environ)...)
	from := map[string]string{}
	root := reflect.ValueOf(&out).Elem()

	for _, l := range leaves {
		problems = append(problems, s.override(l, root, flags, environ, from)...)
	}

	problems = append(problems, s.validate(&out, problems, doc, from)...)

	for _, l := range leaves {
		if from[l.key] == "" && doc != nil && doc.Has(pathOf(l.key)) {
			from[l.key] = "file " + doc.file
		}
	}

	return &out, from, problems.Err()
}

// validate gives what Validate says of the keys that could be read: one that could not has its
// default, of which nothing is to be said.
func (s *Spec[T]) validate(out *T, unread Problems, doc *Document, from map[string]string) Problems {
	// A file that is no YAML says nothing of any key.
	if s.Validate == nil || (doc == nil && len(unread) > 0) {
		return nil
	}

	return slices.DeleteFunc(placed(s.Validate(out), doc, from), func(found Problem) bool {
		return slices.ContainsFunc(unread, func(p Problem) bool { return p.Path == found.Path })
	})
}

// File is the one that Load reads; empty if there is none.
func (s *Spec[T]) File(flags *pflag.FlagSet) string { return s.file(flags, s.environ()) }

func (s *Spec[T]) file(flags *pflag.FlagSet, environ map[string]string) string {
	if flags != nil {
		if given, err := flags.GetString(fileFlag); err == nil && given != "" {
			return given
		}
	}

	return environ[s.EnvFile]
}

func (s *Spec[T]) readFile(flags *pflag.FlagSet, environ map[string]string, out *T) (*Document, error) {
	path := s.file(flags, environ)

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

	problems := append(s.identity(doc), problemsOf(doc.Decode(out))...)

	return doc, problems.Err()
}

// identity checks what the file says it is.
func (s *Spec[T]) identity(doc *Document) Problems {
	if s.Kind == "" {
		return nil
	}

	var problems Problems

	for _, one := range []struct{ key, want string }{{keyAPIVersion, s.APIVersion}, {keyKind, s.Kind}} {
		switch entry := doc.root.find(one.key); {
		case entry == nil || entry.value.null():
			problems = append(problems, doc.At(nil, "%s is missing: want %s", one.key, one.want))
		case entry.value.text != one.want:
			problems = append(problems, doc.At(Path{one.key}, "is %s, want %s", describe(entry.value), one.want))
		}
	}

	return problems
}

// readFile reads at most what Parse takes.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err // callers say what they read
	}
	defer file.Close() //nolint:errcheck // it was only read

	return io.ReadAll(io.LimitReader(file, maxBytes+1))
}

// override sets a key from its variable or flag.
func (s *Spec[T]) override(
	l leaf, root reflect.Value, flags *pflag.FlagSet, environ, from map[string]string,
) Problems {
	name := l.env

	text, ok := environ[name]
	if !ok && s.Aliases[l.key] != "" {
		name = s.Aliases[l.key]
		text, ok = environ[name]
	}

	var problems Problems

	if ok {
		value, err := fromText(l.kind, text)
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

	if flag := flags.Lookup(l.flag); flag != nil && flag.Changed {
		if value, ok := flag.Value.(*flagValue); ok {
			l.set(root, value.value)
			from[l.key] = "flag --" + l.flag
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
