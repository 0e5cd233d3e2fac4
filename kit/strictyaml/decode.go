// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Decode fills a struct, by its yaml tags; out is a pointer to it. Its error is of type
// Problems; out then has what could be read.
func (d *Document) Decode(out any) error { return d.DecodeAt(nil, out) }

// DecodeAt fills out with the value at a path: for values that are any in the struct and
// have a type of their own. Nothing is done where there is no value.
func (d *Document) DecodeAt(path Path, out any) error {
	at := d.root

	for _, step := range path {
		if at = at.step(step); at == nil {
			return nil
		}
	}

	target := reflect.ValueOf(out)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("decode %s: want a pointer, not %T", d.file, out)
	}

	decoder := decoder{file: d.file}
	decoder.value(at, target.Elem(), path)

	return decoder.problems.Err()
}

// Decode reads data as one document into out, a pointer to a struct.
func Decode(file string, data []byte, out any) error {
	doc, err := Parse(file, data)
	if err != nil {
		return err
	}

	return doc.Decode(out)
}

type decoder struct {
	file     string
	problems Problems
}

func (d *decoder) problemf(line, column int, path Path, hint, format string, args ...any) {
	d.problems = append(d.problems, Problem{
		File: d.file, Line: line, Column: column, Path: path.String(), Message: fmt.Sprintf(format, args...), Hint: hint,
	})
}

func (d *decoder) value(in *node, out reflect.Value, path Path) {
	if in.null() {
		return
	}

	if out.CanAddr() && in.kind == yaml.ScalarNode {
		if text, ok := out.Addr().Interface().(encoding.TextUnmarshaler); ok {
			if err := text.UnmarshalText([]byte(in.text)); err != nil {
				d.problemf(in.line, in.column, path, "", "%v", err)
			}

			return
		}
	}

	switch out.Kind() {
	case reflect.Pointer:
		if out.IsNil() {
			out.Set(reflect.New(out.Type().Elem()))
		}

		d.value(in, out.Elem(), path)
	case reflect.Interface:
		out.Set(reflect.ValueOf(free(in)))
	case reflect.Struct:
		d.structure(in, out, path)
	case reflect.Slice:
		d.slice(in, out, path)
	case reflect.Map:
		d.mapping(in, out, path)
	default:
		d.scalar(in, out, path)
	}
}

// wants says that a value of another kind stands there.
func (d *decoder) wants(in *node, path Path, what string) {
	d.problemf(in.line, in.column, path, "", "is %s, want %s", describe(in), what)
}

func (d *decoder) structure(in *node, out reflect.Value, path Path) {
	if in.kind != yaml.MappingNode {
		d.wants(in, path, "a mapping of keys to values")

		return
	}

	fields := fieldsOf(out.Type())

	for _, entry := range in.keys {
		index, ok := fields[entry.name]
		if !ok {
			known := make([]string, 0, len(fields))
			for name := range fields {
				known = append(known, name)
			}

			d.problemf(entry.line, entry.column, path.With(entry.name), Nearest(entry.name, known), "unknown field")

			continue
		}

		d.value(entry.value, out.Field(index), path.With(entry.name))
	}
}

// fieldsOf are the exported fields by their yaml name.
func fieldsOf(kind reflect.Type) map[string]int {
	fields := map[string]int{}

	for i := range kind.NumField() {
		if name := fieldName(kind.Field(i)); name != "" {
			fields[name] = i
		}
	}

	return fields
}

// fieldName is a field's key in the file; empty for a field without one.
func fieldName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
	if !field.IsExported() || name == "-" {
		return ""
	}

	return name
}

func (d *decoder) slice(in *node, out reflect.Value, path Path) {
	if in.kind != yaml.SequenceNode {
		d.wants(in, path, "a list")

		return
	}

	list := reflect.MakeSlice(out.Type(), len(in.items), len(in.items))
	for i, item := range in.items {
		d.value(item, list.Index(i), path.With(i))
	}

	out.Set(list)
}

func (d *decoder) mapping(in *node, out reflect.Value, path Path) {
	if in.kind != yaml.MappingNode {
		d.wants(in, path, "a mapping of keys to values")

		return
	}

	values := reflect.MakeMapWithSize(out.Type(), len(in.keys))

	for _, entry := range in.keys {
		value := reflect.New(out.Type().Elem()).Elem()
		d.value(entry.value, value, path.With(entry.name))
		values.SetMapIndex(reflect.ValueOf(entry.name).Convert(out.Type().Key()), value)
	}

	out.Set(values)
}

func (d *decoder) scalar(in *node, out reflect.Value, path Path) {
	if in.kind != yaml.ScalarNode || !scalarFits(in, out.Type()) {
		d.wants(in, path, wantOf(out.Type()))

		return
	}

	value, err := fromText(out.Type(), in.text)
	if err != nil {
		d.wants(in, path, wantOf(out.Type()))

		return
	}

	out.Set(reflect.ValueOf(value).Convert(out.Type()))
}

// scalarFits says whether a scalar's own type goes with the field's: a text is no number,
// and a number no text.
func scalarFits(in *node, kind reflect.Type) bool {
	if kind == reflect.TypeFor[time.Duration]() {
		return in.tag == "!!str"
	}

	switch kind.Kind() {
	case reflect.String:
		return in.tag == "!!str" || in.tag == "!!timestamp"
	case reflect.Bool:
		return in.tag == "!!bool"
	case reflect.Float32, reflect.Float64:
		return in.tag == "!!float" || in.tag == "!!int"
	default:
		return in.tag == "!!int"
	}
}

// free is a value without a type: map[string]any, []any, string, int64, float64, bool or
// nil. A date is the text that stands there.
func free(in *node) any {
	switch in.kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(in.keys))
		for _, entry := range in.keys {
			out[entry.name] = free(entry.value)
		}

		return out
	case yaml.SequenceNode:
		out := make([]any, len(in.items))
		for i, item := range in.items {
			out[i] = free(item)
		}

		return out
	default:
		return freeScalar(in)
	}
}

func freeScalar(in *node) any {
	switch in.tag {
	case "!!null":
		return nil
	case "!!bool":
		return strings.EqualFold(in.text, "true")
	case "!!int":
		if number, err := strconv.ParseInt(strings.ReplaceAll(in.text, "_", ""), 0, 64); err == nil {
			return number
		}
	case "!!float":
		var number float64
		if err := (&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: in.text}).Decode(&number); err == nil {
			return number
		}
	}

	return in.text
}

func describe(in *node) string {
	switch {
	case in.kind == yaml.MappingNode:
		return "a mapping"
	case in.kind == yaml.SequenceNode:
		return "a list"
	case in.tag == "!!str" && len(in.text) <= 40:
		return strconv.Quote(in.text)
	case in.tag == "!!str":
		return "a text"
	default:
		return in.text
	}
}
