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

// Keys that identify the type of a file. Variables and flags cannot set them.
const (
	keyAPIVersion = "apiVersion"
	keyKind       = "kind"
)

// Spec describes the configuration of one program. HYPERFLEET_* variables override the file, and
// flags override the variables. Each key whose value is a string, bool, number, duration, list of
// strings or map of strings has a variable and a flag. For example, clients.hyperfleet_api.base_url
// has HYPERFLEET_CLIENTS_HYPERFLEET_API_BASE_URL and --clients-hyperfleet-api-base-url. Lists and
// maps are replaced as a whole. Variables and flags write them as a,b and k=v,k2=v2.
type Spec[T any] struct {
	// APIVersion and Kind are the required values of the file's apiVersion and kind. If Kind is empty,
	// neither is checked.
	APIVersion, Kind string
	// Default is the configuration with the defaults, which the file overrides.
	Default T
	// EnvFile is the name of the variable with the path of the file. The flag --config overrides the
	// variable.
	EnvFile string
	// FileRequired makes it an error if no file is configured.
	FileRequired bool
	// OwnsPrefix makes HYPERFLEET_* variables that set no key an error, except for ForeignEnv and for
	// variables that Kubernetes sets for Services. If it is false, such variables are ignored.
	OwnsPrefix bool
	// ForeignEnv are names of HYPERFLEET_* variables that other code reads.
	ForeignEnv []string
	// Aliases are alternative variables, by the key that they set. A key's own variable takes precedence.
	Aliases map[string]string
	// CompoundWords are names with capitals inside, such as MetalLB, that are one word in flags and
	// variables.
	CompoundWords []string
	// Help contains the help texts of flags, by key.
	Help map[string]string
	// Validate validates the configuration. It collects errors in KeyErrors, so that each problem has
	// the position of its key.
	Validate func(*T) error
	// Environ returns the environment. Default: os.Environ.
	Environ func() []string
}

// KeyError is an error about one key.
type KeyError struct {
	Path Path
	Err  error
}

// Error returns the key and the error.
func (e *KeyError) Error() string { return e.Path.String() + ": " + e.Err.Error() }

// Unwrap returns the error without the key.
func (e *KeyError) Unwrap() error { return e.Err }

// ErrorAt returns an error about one key, such as log.level. A key cannot contain an index. For
// elements of lists, use a KeyError.
func ErrorAt(key, format string, args ...any) error {
	return &KeyError{Path: parsePath(key), Err: fmt.Errorf(format, args...)}
}

// KeyErrors collects errors about keys, for Validate.
type KeyErrors []error

// Requiref adds an error about a key if a requirement does not hold.
func (e *KeyErrors) Requiref(holds bool, key, format string, args ...any) {
	if !holds {
		*e = append(*e, ErrorAt(key, format, args...))
	}
}

// Add adds an error about the key at a path, unless it is nil.
func (e *KeyErrors) Add(err error, path ...any) {
	if err != nil {
		*e = append(*e, &KeyError{Path: path, Err: err})
	}
}

// Err returns all errors, or nil if there are none.
func (e *KeyErrors) Err() error { return errors.Join(*e...) }

func parsePath(key string) Path {
	path := Path{}
	for step := range strings.SplitSeq(key, ".") {
		path = append(path, step)
	}

	return path
}

// Load loads the configuration. flags may be nil. Otherwise AddFlags must have been called on
// flags, and flags must have been parsed. The error is of type Problems and contains all problems.
func (s *Spec[T]) Load(flags *pflag.FlagSet) (*T, error) {
	out, _, err := s.load(flags)

	return out, err
}

// Check loads the configuration and returns only the error.
func (s *Spec[T]) Check(flags *pflag.FlagSet) error {
	_, err := s.Load(flags)

	return err
}

// CheckText returns the problems of a text as if it were the configuration file, without environment and flags.
func (s *Spec[T]) CheckText(file string, text []byte) Problems {
	doc, err := Parse(file, text)
	if err != nil {
		return asProblems(err)
	}

	out := s.Default
	problems := append(s.checkIdentity(doc), asProblems(doc.Decode(&out))...)
	problems = append(problems, s.validate(&out, problems, doc, nil)...)

	return problems.Sorted()
}

// load also returns the source of each value that is not the default, by key: "file PATH", "env
// NAME" or "flag --name".
func (s *Spec[T]) load(flags *pflag.FlagSet) (config *T, sourceByKey map[string]string, err error) {
	environ, leaves := s.environ(), s.leaves()
	out := s.Default

	doc, err := s.readFile(flags, environ, &out)
	problems := asProblems(err)

	if err != nil && problems == nil {
		return nil, nil, err
	}

	problems = append(problems, s.findUnknownVariables(leaves, environ)...)
	sourceByKey = map[string]string{}
	root := reflect.ValueOf(&out).Elem()

	for _, l := range leaves {
		problems = append(problems, s.applyOverrides(l, root, flags, environ, sourceByKey)...)
	}

	problems = append(problems, s.validate(&out, problems, doc, sourceByKey)...)

	for _, l := range leaves {
		if sourceByKey[l.key] == "" && doc != nil && doc.HasValue(parsePath(l.key)) {
			sourceByKey[l.key] = "file " + doc.file
		}
	}

	return &out, sourceByKey, problems.Err()
}

// validate calls Validate and returns its problems. It omits problems of keys that could not be
// decoded, because these keys have their default.
func (s *Spec[T]) validate(out *T, decodeProblems Problems, doc *Document, sourceByKey map[string]string) Problems {
	// If the file could not be parsed, no value is known.
	if s.Validate == nil || (doc == nil && len(decodeProblems) > 0) {
		return nil
	}

	return slices.DeleteFunc(locateProblems(s.Validate(out), doc, sourceByKey), func(found Problem) bool {
		return slices.ContainsFunc(decodeProblems, func(p Problem) bool { return p.Path == found.Path })
	})
}

// FilePath returns the path of the file that Load reads, or "" if no file is configured.
func (s *Spec[T]) FilePath(flags *pflag.FlagSet) string { return s.filePath(flags, s.environ()) }

func (s *Spec[T]) filePath(flags *pflag.FlagSet, environ map[string]string) string {
	if flags != nil {
		if given, err := flags.GetString(fileFlag); err == nil && given != "" {
			return given
		}
	}

	return environ[s.EnvFile]
}

// readFile reads the configuration file into out. Without a file it returns an empty document, or an error
// if a file is required.
func (s *Spec[T]) readFile(flags *pflag.FlagSet, environ map[string]string, out *T) (*Document, error) {
	path := s.filePath(flags, environ)

	if path == "" {
		if s.FileRequired {
			return nil, Problems{{File: "--" + fileFlag, Message: "no configuration file is given"}}
		}

		return &Document{file: "configuration", root: &yaml.Node{}}, nil
	}

	data, err := ReadFile(path)
	if err != nil {
		return nil, Problems{{File: path, Message: err.Error()}}
	}

	doc, err := Parse(path, data)
	if err != nil {
		return nil, err
	}

	problems := append(s.checkIdentity(doc), asProblems(doc.Decode(out))...)

	return doc, problems.Err()
}

// checkIdentity checks the file's apiVersion and kind.
func (s *Spec[T]) checkIdentity(doc *Document) Problems {
	if s.Kind == "" {
		return nil
	}

	var problems Problems

	for _, required := range []struct{ key, value string }{{keyAPIVersion, s.APIVersion}, {keyKind, s.Kind}} {
		switch value := Lookup(doc.root, required.key); {
		case value == nil:
			problems = append(problems, doc.ProblemAt(nil, "%s is missing: want %s", required.key, required.value))
		case value.Value != required.value:
			problems = append(problems, doc.ProblemAt(Path{required.key}, "is %s, want %s", describeValue(value), required.value))
		}
	}

	return problems
}

// ReadFile reads at most one byte more than Parse accepts, so that Parse rejects a larger file.
func ReadFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err // the caller adds the path
	}
	defer file.Close() //nolint:errcheck // it was only read

	return io.ReadAll(io.LimitReader(file, maxBytes+1))
}

// applyOverrides sets a key from its variable, its alias or its flag.
func (s *Spec[T]) applyOverrides(
	l leaf, root reflect.Value, flags *pflag.FlagSet, environ, sourceByKey map[string]string,
) Problems {
	name := l.env

	text, ok := environ[name]
	if !ok && s.Aliases[l.key] != "" {
		name = s.Aliases[l.key]
		text, ok = environ[name]
	}

	var problems Problems

	if ok {
		value, err := parseValue(l.valueType, text)
		if err != nil {
			problems = Problems{{File: "env " + name, Path: l.key, Message: err.Error()}}
		} else {
			l.set(root, value)
			sourceByKey[l.key] = "env " + name
		}
	}

	if flags == nil {
		return problems
	}

	if flag := flags.Lookup(l.flag); flag != nil && flag.Changed {
		if value, ok := flag.Value.(*flagValue); ok {
			l.set(root, value.value)
			sourceByKey[l.key] = "flag --" + l.flag
			// The flag overrides the variable, so an invalid variable does not matter.
			problems = nil
		}
	}

	return problems
}

// locateProblems converts the errors of Validate into problems with positions.
func locateProblems(err error, doc *Document, sourceByKey map[string]string) Problems {
	if err == nil {
		return nil
	}

	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var problems Problems
		for _, err := range joined.Unwrap() {
			problems = append(problems, locateProblems(err, doc, sourceByKey)...)
		}

		return problems
	}

	var keyErr *KeyError
	if !errors.As(err, &keyErr) {
		return Problems{{File: doc.file, Message: err.Error()}}
	}

	problem := doc.ProblemAt(keyErr.Path, "%v", keyErr.Err)
	if source := sourceByKey[problem.Path]; source != "" {
		problem.File, problem.Line, problem.Column = source, 0, 0
	}

	return Problems{problem}
}

func asProblems(err error) Problems {
	var problems Problems

	errors.As(err, &problems)

	return problems
}

// Write writes a configuration as YAML. Decoding the output results in the same configuration.
func Write(w io.Writer, value any) error {
	text, err := Encode(value)
	if err != nil {
		return err
	}

	_, err = w.Write(text)

	return err
}
