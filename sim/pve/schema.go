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
	maxLen   int
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
			errs[name] = err
		}
	}
	for name, p := range sc {
		if _, ok := params[name]; !ok && p.required {
			errs[name] = "property is missing and it is not optional"
		}
	}
	return errs
}

func (p param) validate(v string) string {
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
		if _, err := strconv.ParseFloat(v, 64); err != nil {
			return fmt.Sprintf("type check ('number') failed - got '%s'", v)
		}
	case kBool:
		if !slices.Contains([]string{"0", "1", "on", "off", "yes", "no", "true", "false"}, strings.ToLower(v)) {
			return fmt.Sprintf("type check ('boolean') failed - got '%s'", v)
		}
	case kString:
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
			if strings.HasPrefix(msg, "invalid format - ") { // the error of a parser
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
	rePoolID   = regexp.MustCompile(`^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+){0,2}$`)
)

func checkDNSName(v string) error {
	if !reDNSLabel.MatchString(v) {
		return errors.New("invalid format - value does not look like a valid DNS name")
	}
	return nil
}

func checkPoolID(v string) error {
	if !rePoolID.MatchString(v) {
		return fmt.Errorf("invalid format - value '%s' does not look like a valid pool name", v)
	}
	return nil
}

func checkStorageID(v string) error {
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
	if n := atoi(v); n < minVMID || n > maxVMID {
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

// stringify converts a decoded JSON value to the text that a form would have.
func stringify(v any) (string, bool) {
	switch x := v.(type) {
	case string:
		return x, true
	case bool:
		if x {
			return "1", true
		}
		return "0", true
	case json.Number:
		return x.String(), true
	default:
		return "", false
	}
}
