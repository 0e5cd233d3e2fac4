// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
)

// Decode decodes the document into the struct that out points to, by its yaml tags. The error is of
// type Problems. If there are problems, out has the values that could be decoded.
func (d *Document) Decode(out any) error { return d.DecodeAt(nil, out) }

// DecodeAt decodes the value at a path into out, a pointer. Use it for values that have type any in
// the struct and whose concrete type is known later. If the document has no value at the path,
// DecodeAt does nothing.
func (d *Document) DecodeAt(path Path, out any) error {
	current := d.at(path)
	if current == nil {
		return nil
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
func (d *decoder) decodeValue(in *yaml.Node, out reflect.Value, path Path) {
	if isNull(in) {
		return
	}

	if out.CanAddr() && in.Kind == yaml.ScalarNode {
		if text, ok := out.Addr().Interface().(encoding.TextUnmarshaler); ok {
			if err := text.UnmarshalText([]byte(in.Value)); err != nil {
				d.problemf(in.Line, in.Column, path, "", "%v", err)
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
		out.Set(reflect.ValueOf(ToAny(in)))
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
func (d *decoder) addTypeProblem(in *yaml.Node, path Path, expected string) {
	d.problemf(in.Line, in.Column, path, "", "is %s, want %s", describeValue(in), expected)
}

// decodeStruct decodes a mapping into the fields of a struct. An unknown key is a problem with the most
// similar field as a suggestion.
func (d *decoder) decodeStruct(in *yaml.Node, out reflect.Value, path Path) {
	if in.Kind != yaml.MappingNode {
		d.addTypeProblem(in, path, "a mapping of keys to values")

		return
	}

	fields := fieldsByName(out.Type())

	for key, value := range entries(in) {
		index, ok := fields[key.Value]
		if !ok {
			known := slices.Collect(maps.Keys(fields))
			d.problemf(key.Line, key.Column, path.Append(key.Value), SuggestName(key.Value, known), "unknown field")

			continue
		}

		d.decodeValue(value, out.Field(index), path.Append(key.Value))
	}
}

// fieldsByName returns the indexes of the exported fields by their yaml name.
func fieldsByName(structType reflect.Type) map[string]int {
	fields := map[string]int{}

	for i := range structType.NumField() {
		if name := fieldName(structType.Field(i)); name != "" {
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

func (d *decoder) decodeSlice(in *yaml.Node, out reflect.Value, path Path) {
	if in.Kind != yaml.SequenceNode {
		d.addTypeProblem(in, path, "a list")

		return
	}

	list := reflect.MakeSlice(out.Type(), len(in.Content), len(in.Content))
	for i, item := range in.Content {
		d.decodeValue(item, list.Index(i), path.Append(i))
	}

	out.Set(list)
}

func (d *decoder) decodeMap(in *yaml.Node, out reflect.Value, path Path) {
	if in.Kind != yaml.MappingNode {
		d.addTypeProblem(in, path, "a mapping of keys to values")

		return
	}

	values := reflect.MakeMapWithSize(out.Type(), len(in.Content)/2)

	for key, value := range entries(in) {
		decoded := reflect.New(out.Type().Elem()).Elem()
		d.decodeValue(value, decoded, path.Append(key.Value))
		values.SetMapIndex(reflect.ValueOf(key.Value).Convert(out.Type().Key()), decoded)
	}

	out.Set(values)
}

func (d *decoder) decodeScalar(in *yaml.Node, out reflect.Value, path Path) {
	if in.Kind != yaml.ScalarNode || !isScalarOf(in, out.Type()) {
		d.addTypeProblem(in, path, describeType(out.Type()))

		return
	}

	value, err := parseValue(out.Type(), in.Value)
	if err != nil {
		d.addTypeProblem(in, path, describeType(out.Type()))

		return
	}

	out.Set(reflect.ValueOf(value).Convert(out.Type()))
}

// isScalarOf returns whether a scalar may be decoded into a field of the type. A string is not
// converted to a number, nor a number to a string.
func isScalarOf(in *yaml.Node, valueType reflect.Type) bool {
	if valueType == reflect.TypeFor[time.Duration]() {
		return in.ShortTag() == tagString
	}

	switch valueType.Kind() {
	case reflect.String:
		return in.ShortTag() == tagString || in.ShortTag() == "!!timestamp"
	case reflect.Bool:
		return in.ShortTag() == "!!bool"
	case reflect.Float32, reflect.Float64:
		return in.ShortTag() == "!!float" || in.ShortTag() == "!!int"
	default:
		return in.ShortTag() == "!!int"
	}
}

// ToAny converts a value into map[string]any, []any, string, int64, float64, bool or nil. A number that neither an int64
// nor a float64 holds exactly becomes a json.Number. A date becomes a string as it is written in the file.
func ToAny(in *yaml.Node) any {
	switch in.Kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(in.Content)/2)
		for key, value := range entries(in) {
			out[key.Value] = ToAny(value)
		}

		return out
	case yaml.SequenceNode:
		out := make([]any, len(in.Content))
		for i, item := range in.Content {
			out[i] = ToAny(item)
		}

		return out
	default:
		return scalarToAny(in)
	}
}

func scalarToAny(in *yaml.Node) any {
	switch in.ShortTag() {
	case tagNull:
		return nil
	case "!!bool":
		return strings.EqualFold(in.Value, "true")
	case "!!int":
		if number, err := strconv.ParseInt(strings.ReplaceAll(in.Value, "_", ""), 0, 64); err == nil {
			return number
		}

		if number, err := exactjson.Parse([]byte(in.Value)); err == nil {
			return number
		}
	case "!!float":
		if number, err := exactjson.Parse([]byte(in.Value)); err == nil {
			return number
		}

		var number float64
		if err := (&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: in.Value}).Decode(&number); err == nil {
			return number
		}
	}

	return in.Value
}

func describeValue(in *yaml.Node) string {
	switch {
	case in.Kind == yaml.MappingNode:
		return "a mapping"
	case in.Kind == yaml.SequenceNode:
		return "a list"
	case in.ShortTag() == tagString && len(in.Value) <= 40:
		return strconv.Quote(in.Value)
	case in.ShortTag() == tagString:
		return "a string"
	default:
		return in.Value
	}
}
