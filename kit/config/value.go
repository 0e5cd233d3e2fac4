// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

var errWrongType = errors.New("wrong type")

// fromText reads a value as variables and flags have it.
func (l leaf) fromText(text string) (any, error) {
	value, err := l.parse(text)
	if err != nil {
		return nil, fmt.Errorf("%q: want %s", text, l.wants())
	}

	return value, nil
}

func (l leaf) parse(text string) (any, error) {
	switch l.kind {
	case reflect.TypeFor[time.Duration]():
		return time.ParseDuration(text)
	case reflect.TypeFor[[]string]():
		return list(text), nil
	case reflect.TypeFor[map[string]string]():
		return pairs(text)
	}

	switch l.kind.Kind() {
	case reflect.String:
		return text, nil
	case reflect.Bool:
		return strconv.ParseBool(text)
	case reflect.Float32, reflect.Float64:
		return strconv.ParseFloat(text, l.kind.Bits())
	default:
		return strconv.ParseInt(text, 10, l.kind.Bits())
	}
}

// list splits a,b; the empty text is the empty list.
func list(text string) []string {
	out := []string{}

	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}

	return out
}

// pairs splits k=v,k2=v2.
func pairs(text string) (map[string]string, error) {
	out := map[string]string{}

	for _, item := range list(text) {
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" {
			return nil, errWrongType
		}

		out[key] = value
	}

	return out, nil
}

// fromYAML takes a value as the YAML decoder gives it.
func (l leaf) fromYAML(value any) (any, error) {
	out, err := l.convert(value)
	if err != nil {
		return nil, fmt.Errorf("%v: want %s", value, l.wants())
	}

	return out, nil
}

func (l leaf) convert(value any) (any, error) {
	switch l.kind {
	case reflect.TypeFor[time.Duration]():
		text, ok := value.(string)
		if !ok {
			return nil, errWrongType
		}

		return time.ParseDuration(text)
	case reflect.TypeFor[[]string]():
		return texts(value)
	case reflect.TypeFor[map[string]string]():
		return textMap(value)
	}

	switch l.kind.Kind() {
	case reflect.String:
		return as[string](value)
	case reflect.Bool:
		return as[bool](value)
	case reflect.Float32, reflect.Float64:
		if whole, ok := value.(int); ok {
			return float64(whole), nil
		}

		return as[float64](value)
	default:
		return l.whole(value)
	}
}

func as[T any](value any) (any, error) {
	typed, ok := value.(T)
	if !ok {
		return nil, errWrongType
	}

	return typed, nil
}

// whole takes an integer that fits the leaf's type.
func (l leaf) whole(value any) (any, error) {
	number, ok := value.(int)
	if !ok || (l.kind.Bits() == 32 && (number > math.MaxInt32 || number < math.MinInt32)) {
		return nil, errWrongType
	}

	return int64(number), nil
}

func texts(value any) (any, error) {
	items, ok := value.([]any)
	if !ok {
		return nil, errWrongType
	}

	out := make([]string, len(items))

	for i, item := range items {
		text, ok := item.(string)
		if !ok {
			return nil, errWrongType
		}

		out[i] = text
	}

	return out, nil
}

func textMap(value any) (any, error) {
	items, ok := value.(map[string]any)
	if !ok {
		return nil, errWrongType
	}

	out := make(map[string]string, len(items))

	for key, item := range items {
		text, ok := item.(string)
		if !ok {
			return nil, errWrongType
		}

		out[key] = text
	}

	return out, nil
}
