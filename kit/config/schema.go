// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
)

// EnvPrefix begins the name of every variable that sets a key.
const EnvPrefix = "HYPERFLEET_"

// Keys of the file that say what it is; nothing else can set them.
const (
	keyAPIVersion = "apiVersion"
	keyKind       = "kind"
)

// leaf is one key that can be set.
type leaf struct {
	key  string
	kind reflect.Type
}

func (l leaf) env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(l.flag(), "-", "_"))
}

func (l leaf) flag() string { return kebab(strings.ReplaceAll(l.key, ".", "-")) }

// schema is what a configuration struct allows.
type schema struct {
	leaves []leaf
	// groups are the keys of nested structs.
	groups []string
}

func schemaOf(kind reflect.Type) (*schema, error) {
	s := &schema{}
	if err := s.add("", kind); err != nil {
		return nil, err
	}

	seen := map[string]string{}

	for _, l := range s.leaves {
		if other, ok := seen[l.env()]; ok {
			return nil, fmt.Errorf("keys %s and %s have the same variable %s: rename one", other, l.key, l.env())
		}

		seen[l.env()] = l.key
	}

	return s, nil
}

// add takes up the fields of a struct under a prefix.
func (s *schema) add(prefix string, kind reflect.Type) error {
	if kind.Kind() != reflect.Struct {
		return fmt.Errorf("configuration %s: want a struct", kind)
	}

	for _, field := range reflect.VisibleFields(kind) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "" || name == "-" {
			return fmt.Errorf("configuration %s: field %s needs to be exported and have a json name", kind, field.Name)
		}

		key := prefix + name

		switch {
		case key == keyAPIVersion || key == keyKind:
		case isLeaf(field.Type):
			s.leaves = append(s.leaves, leaf{key: key, kind: field.Type})
		default:
			s.groups = append(s.groups, key)
			if err := s.add(key+".", field.Type); err != nil {
				return err
			}
		}
	}

	return nil
}

// isLeaf says whether values of the type can be written in one variable.
func isLeaf(kind reflect.Type) bool {
	switch kind.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Float32, reflect.Float64:
		return true
	case reflect.Slice, reflect.Map:
		return kind == reflect.TypeFor[[]string]() || kind == reflect.TypeFor[map[string]string]()
	default:
		return false
	}
}

func (s *schema) find(key string) (leaf, bool) {
	i := slices.IndexFunc(s.leaves, func(l leaf) bool { return l.key == key })
	if i < 0 {
		return leaf{}, false
	}

	return s.leaves[i], true
}

// wants says in words what a leaf's values look like.
func (l leaf) wants() string {
	switch l.kind {
	case reflect.TypeFor[time.Duration]():
		return "a duration such as 30s or 5m"
	case reflect.TypeFor[[]string]():
		return "a list of texts"
	case reflect.TypeFor[map[string]string]():
		return "a map of texts"
	case reflect.TypeFor[SecretFile]():
		return "the path of a file"
	}

	switch l.kind.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text (numbers in quotes)"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "a whole number"
	}
}

// kebab writes camelCase as kebab-case: operatorUID is operator-uid, caFile ca-file.
func kebab(name string) string {
	var out strings.Builder

	runes := []rune(name)
	for i, c := range runes {
		if unicode.IsUpper(c) && i > 0 && runes[i-1] != '-' &&
			(!unicode.IsUpper(runes[i-1]) || (i+1 < len(runes) && unicode.IsLower(runes[i+1]))) {
			out.WriteByte('-')
		}

		out.WriteRune(unicode.ToLower(c))
	}

	return out.String()
}

// nearest returns ", did you mean X?" for the known name that is closest to name, or
// nothing when none is close.
func nearest(name string, known []string) string {
	if best := Nearest(name, known); best != "" {
		return ", " + best
	}

	return ""
}

// closest is the known name that is closest to name, or nothing when none is close; of
// two that are as close, the first in the alphabet.
func closest(name string, known []string) string {
	known = slices.Sorted(slices.Values(known))
	best, bestDistance := "", len(name)/3+2

	for _, candidate := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}

	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1

		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}

			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}

	return row[len(b)]
}
