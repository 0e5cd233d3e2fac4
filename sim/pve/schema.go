// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kind is the type of a parameter.
type kind int

const (
	kString kind = iota
	kInt
	kBool
	kNumber
)

// param describes one parameter, as the API viewer of Proxmox VE does.
type param struct {
	kind     kind
	required bool
	min, max int64 // for kInt; a max of 0 means no limit
	minLen   int
	maxLen   int
	requires string // another parameter that must be there too
	enum     []string
	check    func(string) error // checks the format
	list     bool               // the parameter can occur several times
}

// schema describes the parameters of a method, except those of its path.
type schema map[string]param

// merge returns a schema with additional parameters.
func (sc schema) merge(more schema) schema {
	out := maps.Clone(sc)
	if out == nil {
		out = schema{}
	}
	maps.Copy(out, more)
	return out
}

// validate returns error messages by field, with the texts of PVE::JSONSchema.
func (sc schema) validate(params map[string]string) map[string]string {
	errs := map[string]string{}
	for name, value := range params {
		p, ok := sc[name]
		if !ok {
			errs[name] = "property is not defined in schema and the schema does not allow additional properties"
			continue
		}
		if err := p.validate(value); err != "" {
			errs[name] = strings.ReplaceAll(err, propertyPath, name+".")
		}
	}
	for name, p := range sc {
		_, ok := params[name]
		switch {
		case !ok && p.required:
			errs[name] = "property is missing and it is not optional"
		case ok && p.requires != "":
			if _, ok := params[p.requires]; !ok {
				errs[p.requires] = "missing property required by '" + name + "'"
			}
		}
	}
	return errs
}

func (p param) validate(v string) string {
	if perlType, ok := strings.CutPrefix(v, notTextPrefix); ok {
		return p.newTypeError(perlType)
	}
	switch p.kind {
	case kInt:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return fmt.Sprintf("type check ('integer') failed - got '%s'", v)
		}
		if n < p.min {
			return fmt.Sprintf("value must have a minimum value of %d", p.min)
		}
		if p.max != 0 && n > p.max {
			return fmt.Sprintf("value must have a maximum value of %d", p.max)
		}
	case kNumber:
		n, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return fmt.Sprintf("type check ('number') failed - got '%s'", v)
		}
		if p.max != 0 && n > float64(p.max) {
			return fmt.Sprintf("value must have a maximum value of %d", p.max)
		}
	case kBool:
		if v != "0" && v != "1" {
			return fmt.Sprintf("type check ('boolean') failed - got '%s'", v)
		}
	case kString:
	}
	if p.minLen > 0 && len([]rune(v)) < p.minLen {
		return fmt.Sprintf("value must be at least %d characters long", p.minLen)
	}
	if p.maxLen > 0 && len([]rune(v)) > p.maxLen {
		return fmt.Sprintf("value may only be %d characters long", p.maxLen)
	}
	if len(p.enum) > 0 && !slices.Contains(p.enum, v) {
		return fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", v, strings.Join(p.enum, ", "))
	}
	if p.check != nil {
		if err := p.check(v); err != nil {
			msg := err.Error()
			if strings.HasPrefix(msg, "invalid format - ") { // Proxmox VE returns a parser's error with its final newline
				msg += "\n"
			}
			return msg
		}
	}
	return ""
}

var (
	reDNSLabel = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*$`)
	reConfigID = regexp.MustCompile(`(?i)^[a-z][a-z0-9_-]+$`)
	reNodeName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$`)
	rePoolID   = regexp.MustCompile(`^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+){0,2}$`)
)

func checkDNSName(v string) error {
	if !reDNSLabel.MatchString(v) {
		return errors.New("invalid format - value does not look like a valid DNS name")
	}
	return nil
}

func checkPoolID(v string) error {
	const levels = 3
	if strings.Count(v, "/") >= levels && !strings.HasSuffix(v, "/") {
		return fmt.Errorf("invalid format - pool name '%s' nested too deeply (max levels = %d)", v, levels)
	}
	if !rePoolID.MatchString(v) {
		return fmt.Errorf("invalid format - pool name '%s' contains invalid characters", v)
	}
	return nil
}

func checkNodeName(v string) error {
	if !reNodeName.MatchString(v) {
		return errors.New("invalid format - value does not look like a valid node name")
	}
	return nil
}

func checkStorageID(v string) error {
	if len(v) == 1 {
		return fmt.Errorf("invalid format - storage ID '%s' cannot be shorter than 2 characters", v)
	}
	if !reConfigID.MatchString(v) {
		return fmt.Errorf("invalid format - storage ID '%s' contains illegal characters", v)
	}
	return nil
}

// The limits of a VMID; see get_standard_option('pve-vmid').
const (
	minVMID = 100
	maxVMID = 999_999_999
)

func newVMIDParam() param { return param{kind: kInt, min: -maxVMID, check: checkVMID} }

func checkVMID(v string) error {
	if n := atoi(v); n < minVMID || n > maxVMID || v[0] == '0' {
		return errors.New("invalid format - value does not look like a valid VM ID")
	}
	return nil
}

// decodeStringList converts a decoded JSON list of strings. It returns false if the value is not
// such a list or if the list is empty.
func decodeStringList(v any) ([]string, bool) {
	list, ok := v.([]any)
	out := make([]string, 0, len(list))
	for _, x := range list {
		s, isString := x.(string)
		if !isString {
			return nil, false
		}
		out = append(out, s)
	}
	return out, ok && len(out) > 0
}

// notTextPrefix begins the text of a JSON value that no form can have. The name of the value's type in Perl follows.
const notTextPrefix = "\x00"

// stringify converts a decoded JSON value to the text that a form would have.
func (p param) stringify(v any) string {
	switch x := v.(type) {
	case string:
		return x
	case bool:
		switch {
		case p.kind != kBool:
			return notTextPrefix + "JSON::PP::Boolean"
		case x:
			return "1"
		default:
			return "0"
		}
	case json.Number:
		return x.String()
	case []any:
		return notTextPrefix + "ARRAY"
	default:
		return notTextPrefix + "HASH"
	}
}

// newTypeError returns the message for a value that is no scalar.
func (p param) newTypeError(perlType string) string {
	name := map[kind]string{kInt: "integer", kNumber: "number", kBool: "boolean", kString: "string"}[p.kind]
	return fmt.Sprintf("type check ('%s') failed - got %s", name, perlType)
}
