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

// Decode decodes the document into the struct that out points to, by its yaml tags. The error is of
// type Problems. If there are problems, out has the values that could be decoded.
func (d *Document) Decode(out any) error { return d.DecodeAt(nil, out) }

// DecodeAt decodes the value at a path into out, a pointer. Use it for values that have type any in
// the struct and whose concrete type is known later. If the document has no value at the path,
// DecodeAt does nothing.
func (d *Document) DecodeAt(path Path, out any) error {
	current := d.root

	for _, step := range path {
		if current = current.child(step); current == nil {
			return nil
		}
	}

	target := reflect.ValueOf(out)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("decode %s: out must be a non-nil pointer, not %T", d.file, out)
	}

	decoder := decoder{file: d.file}
	decoder.decodeValue(current, target.Elem(), path)

	return decoder.problems.Err()
}

// Decode parses data as one document and decodes it into out, a pointer to a struct.
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

// decodeValue decodes a node into out. A null leaves out unchanged.
func (d *decoder) decodeValue(in *node, out reflect.Value, path Path) {
	if in.isNull() {
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

		d.decodeValue(in, out.Elem(), path)
	case reflect.Interface:
		out.Set(reflect.ValueOf(toAny(in)))
	case reflect.Struct:
		d.decodeStruct(in, out, path)
	case reflect.Slice:
		d.decodeSlice(in, out, path)
	case reflect.Map:
		d.decodeMap(in, out, path)
	default:
		d.decodeScalar(in, out, path)
	}
}

// addTypeProblem reports that a value has the wrong type.
func (d *decoder) addTypeProblem(in *node, path Path, expected string) {
	d.problemf(in.line, in.column, path, "", "is %s, want %s", describeValue(in), expected)
}

// decodeStruct decodes a mapping into the fields of a struct. An unknown key is a problem with the most
// similar field as a suggestion.
func (d *decoder) decodeStruct(in *node, out reflect.Value, path Path) {
	if in.kind != yaml.MappingNode {
		d.addTypeProblem(in, path, "a mapping of keys to values")

		return
	}

	fields := fieldsByName(out.Type())

	for _, entry := range in.entries {
		index, ok := fields[entry.name]
		if !ok {
			known := make([]string, 0, len(fields))
			for name := range fields {
				known = append(known, name)
			}

			d.problemf(entry.line, entry.column, path.Append(entry.name), SuggestName(entry.name, known), "unknown field")

			continue
		}

		d.decodeValue(entry.value, out.Field(index), path.Append(entry.name))
	}
}

// fieldsByName returns the indexes of the exported fields by their yaml name.
func fieldsByName(kind reflect.Type) map[string]int {
	fields := map[string]int{}

	for i := range kind.NumField() {
		if name := fieldName(kind.Field(i)); name != "" {
			fields[name] = i
		}
	}

	return fields
}

// fieldName returns a field's key in the file, or "" if the field has no key.
func fieldName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
	if !field.IsExported() || name == "-" {
		return ""
	}

	return name
}

func (d *decoder) decodeSlice(in *node, out reflect.Value, path Path) {
	if in.kind != yaml.SequenceNode {
		d.addTypeProblem(in, path, "a list")

		return
	}

	list := reflect.MakeSlice(out.Type(), len(in.items), len(in.items))
	for i, item := range in.items {
		d.decodeValue(item, list.Index(i), path.Append(i))
	}

	out.Set(list)
}

func (d *decoder) decodeMap(in *node, out reflect.Value, path Path) {
	if in.kind != yaml.MappingNode {
		d.addTypeProblem(in, path, "a mapping of keys to values")

		return
	}

	values := reflect.MakeMapWithSize(out.Type(), len(in.entries))

	for _, entry := range in.entries {
		value := reflect.New(out.Type().Elem()).Elem()
		d.decodeValue(entry.value, value, path.Append(entry.name))
		values.SetMapIndex(reflect.ValueOf(entry.name).Convert(out.Type().Key()), value)
	}

	out.Set(values)
}

func (d *decoder) decodeScalar(in *node, out reflect.Value, path Path) {
	if in.kind != yaml.ScalarNode || !isScalarOf(in, out.Type()) {
		d.addTypeProblem(in, path, describeType(out.Type()))

		return
	}

	value, err := parseValue(out.Type(), in.text)
	if err != nil {
		d.addTypeProblem(in, path, describeType(out.Type()))

		return
	}

	out.Set(reflect.ValueOf(value).Convert(out.Type()))
}

// isScalarOf returns whether a scalar may be decoded into a field of the type. A string is not
// converted to a number, nor a number to a string.
func isScalarOf(in *node, kind reflect.Type) bool {
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

// toAny converts a value into map[string]any, []any, string, int64, float64, bool or nil. A date
// becomes a string as it is written in the file.
func toAny(in *node) any {
	switch in.kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(in.entries))
		for _, entry := range in.entries {
			out[entry.name] = toAny(entry.value)
		}

		return out
	case yaml.SequenceNode:
		out := make([]any, len(in.items))
		for i, item := range in.items {
			out[i] = toAny(item)
		}

		return out
	default:
		return scalarToAny(in)
	}
}

func scalarToAny(in *node) any {
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

func describeValue(in *node) string {
	switch {
	case in.kind == yaml.MappingNode:
		return "a mapping"
	case in.kind == yaml.SequenceNode:
		return "a list"
	case in.tag == "!!str" && len(in.text) <= 40:
		return strconv.Quote(in.text)
	case in.tag == "!!str":
		return "a string"
	default:
		return in.text
	}
}
