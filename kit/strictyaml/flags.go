// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// fileFlag is the flag with the path of the file.
const fileFlag = "config"

// words finds the words of a key: those that are written whole, then those that begin with
// a capital or a lower case letter.
func words(whole []string) *regexp.Regexp {
	parts := []string{"CIDRs?", "DNS", "IP", "API", "CA", "UID"}

	for _, word := range whole {
		parts = append(parts, "(?i:"+regexp.QuoteMeta(word)+")")
	}

	return regexp.MustCompile(strings.Join(append(parts, "[A-Z]?[a-z0-9]+", "[A-Z]+"), "|"))
}

// flagName is a key as a flag has it: hosts.vmEgressCIDRs is hosts-vm-egress-cidrs.
func flagName(words *regexp.Regexp, key string) string {
	return strings.ToLower(strings.Join(words.FindAllString(key, -1), "-"))
}

// leaf is one key that a variable or a flag may set.
type leaf struct {
	key, flag, env string
	index          [][]int
	kind           reflect.Type
}

// get is the key's value; nil where an optional group or value on the way is not there.
func (l leaf) get(root reflect.Value) any {
	at := root

	for _, index := range append(slices.Clone(l.index), nil) {
		if at.Kind() == reflect.Pointer {
			if at.IsNil() {
				return nil
			}

			at = at.Elem()
		}

		if index != nil {
			at = at.FieldByIndex(index)
		}
	}

	return at.Interface()
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

// leaves are the keys of the configuration with their names as variable and flag.
func (s *Spec[T]) leaves() []leaf {
	words := words(s.Words)

	leaves := leavesOf(reflect.TypeFor[T](), "", nil)
	for i := range leaves {
		leaves[i].flag = flagName(words, leaves[i].key)
		leaves[i].env = EnvPrefix + strings.ToUpper(strings.ReplaceAll(leaves[i].flag, "-", "_"))
	}

	if s.Kind == "" {
		return leaves
	}

	return slices.DeleteFunc(leaves, func(l leaf) bool { return l.key == keyAPIVersion || l.key == keyKind })
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
		case settable(fieldType):
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

	for _, l := range s.leaves() {
		if flags.Lookup(l.flag) != nil {
			return fmt.Errorf("key %s: there is a flag --%s already", l.key, l.flag)
		}

		usage := "sets " + l.key + " (env " + l.env + ")"
		if help := s.Help[l.key]; help != "" {
			usage = help + "; " + usage
		}

		flag := flags.VarPF(&flagValue{kind: l.kind}, l.flag, "", usage)
		if l.kind.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}

	return nil
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

	value, err := fromText(v.kind, text)
	if err != nil {
		return err
	}

	v.text, v.value = text, value

	return nil
}
