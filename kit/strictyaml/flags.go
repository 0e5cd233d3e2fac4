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

// fileFlag is the name of the flag with the path of the file.
const fileFlag = "config"

// wordPattern returns a pattern that splits a key into words. Acronyms and the compound words are
// kept as one word. Other words start with an upper or lower case letter.
func wordPattern(compound []string) *regexp.Regexp {
	parts := []string{"CIDRs?", "DNS", "IP", "API", "CA", "UID"}

	for _, word := range compound {
		parts = append(parts, "(?i:"+regexp.QuoteMeta(word)+")")
	}

	return regexp.MustCompile(strings.Join(append(parts, "[A-Z]?[a-z0-9]+", "[A-Z]+"), "|"))
}

// flagName returns the name of the flag for a key. For example, hosts.vmEgressCIDRs becomes
// hosts-vm-egress-cidrs.
func flagName(pattern *regexp.Regexp, key string) string {
	return strings.ToLower(strings.Join(pattern.FindAllString(key, -1), "-"))
}

// leaf is a key that a variable or a flag can set.
type leaf struct {
	key, flag, env string
	// path has the indexes of the fields that lead to the key, from the outermost struct on.
	path      []int
	valueType reflect.Type
}

// get returns the key's value. It returns nil if the value, or a group that contains the key, is a
// nil pointer.
func (l leaf) get(root reflect.Value) any {
	current := root

	for _, field := range l.path {
		current = current.Field(field)
		if current.Kind() != reflect.Pointer {
			continue
		}

		if current.IsNil() {
			return nil
		}

		current = current.Elem()
	}

	return current.Interface()
}

// set sets the key's value. It allocates the groups that contain the key if they are nil pointers.
func (l leaf) set(root reflect.Value, value any) {
	current := root

	for _, field := range l.path {
		if current.Kind() == reflect.Pointer {
			if current.IsNil() {
				current.Set(reflect.New(current.Type().Elem()))
			}

			current = current.Elem()
		}

		current = current.Field(field)
	}

	if current.Kind() == reflect.Pointer {
		current.Set(reflect.New(current.Type().Elem()))
		current = current.Elem()
	}

	current.Set(reflect.ValueOf(value).Convert(current.Type()))
}

// leaves returns the keys of the configuration with the names of their variables and flags. It
// omits apiVersion and kind.
func (s *Spec[T]) leaves() []leaf {
	pattern := wordPattern(s.CompoundWords)

	leaves := leavesOf(reflect.TypeFor[T](), "", nil)
	for i := range leaves {
		leaves[i].flag = flagName(pattern, leaves[i].key)
		leaves[i].env = EnvPrefix + strings.ToUpper(strings.ReplaceAll(leaves[i].flag, "-", "_"))
	}

	if s.Kind == "" {
		return leaves
	}

	return slices.DeleteFunc(leaves, func(l leaf) bool { return l.key == keyAPIVersion || l.key == keyKind })
}

// leavesOf returns the keys of a struct that have values, with those of its nested structs. Lists of structs and values
// of type any have no keys. The keys begin with prefix. The path leads to the struct.
func leavesOf(structType reflect.Type, prefix string, path []int) []leaf {
	var leaves []leaf

	for i := range structType.NumField() {
		field := structType.Field(i)

		name := fieldName(field)
		if name == "" {
			continue
		}

		fieldType := field.Type
		if fieldType.Kind() == reflect.Pointer {
			fieldType = fieldType.Elem()
		}

		fieldPath := append(slices.Clone(path), i)

		switch {
		case isSettable(fieldType):
			leaves = append(leaves, leaf{key: prefix + name, path: fieldPath, valueType: fieldType})
		case fieldType.Kind() == reflect.Struct:
			leaves = append(leaves, leavesOf(fieldType, prefix+name+".", fieldPath)...)
		}
	}

	return leaves
}

// AddFlags adds the flag --config and a flag for each key.
func (s *Spec[T]) AddFlags(flags *pflag.FlagSet) error {
	usage := "configuration file"
	if s.EnvFile != "" {
		usage += " (env " + s.EnvFile + ")"
	}

	flags.String(fileFlag, "", usage)

	for _, l := range s.leaves() {
		if flags.Lookup(l.flag) != nil {
			return fmt.Errorf("add flag of key %s: flag --%s exists already", l.key, l.flag)
		}

		usage := "sets " + l.key + " (env " + l.env + ")"
		if help := s.Help[l.key]; help != "" {
			usage = help + "; " + usage
		}

		flag := flags.VarPF(&flagValue{valueType: l.valueType}, l.flag, "", usage)
		if l.valueType.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}

	return nil
}

// flagValue is the value of a key's flag.
type flagValue struct {
	valueType reflect.Type
	text      string
	value     any
}

// String returns the value as it was set.
func (v *flagValue) String() string { return v.text }

// Type returns the placeholder that the help text shows after the flag's name.
func (v *flagValue) Type() string {
	switch kind := v.valueType.Kind(); {
	case kind == reflect.Bool:
		return "bool"
	case kind == reflect.Slice:
		return "a,b"
	case kind == reflect.Map:
		return "k=v,k=v"
	case kind == reflect.String:
		return "text"
	case strings.HasSuffix(v.valueType.String(), "Duration"):
		return "duration"
	default:
		return "number"
	}
}

// Set sets the value. If the flag is repeated, lists and maps are extended, and other values are
// replaced.
func (v *flagValue) Set(text string) error {
	if kind := v.valueType.Kind(); v.value != nil && (kind == reflect.Slice || kind == reflect.Map) {
		text = v.text + "," + text
	}

	value, err := parseValue(v.valueType, text)
	if err != nil {
		return err
	}

	v.text, v.value = text, value

	return nil
}
