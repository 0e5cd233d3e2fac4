// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	template "github.com/DataDog/datadog-agent/pkg/template/text"

	"github.com/hyperfleet/hyperfleet/kit/templates"
)

// maxInlineBinary is the maximum size in bytes of a program that a template may write into user data.
const maxInlineBinary = 64 << 10

// workPerByte is how many bytes the functions may create in total for each byte of the maximum result size.
const workPerByte = 4

// jsonPerByte is the maximum number of bytes that JSON needs for one byte of a text (\u0000).
const jsonPerByte = 6

// executeTemplate executes one of the user's templates. Errors contain field. limit is the maximum size of
// the result in bytes.
func executeTemplate(field, text string, vars *Vars, limit int) (string, error) {
	if text == "" {
		return "", nil
	}

	tmpl, err := templates.Parse(field, text,
		templates.Limits{Output: limit, Work: workPerByte * limit}, newFunctions, nil)
	if err != nil {
		return "", wrapExecuteError(field, err, limit)
	}

	out, err := tmpl.Execute(vars)
	if err != nil {
		return "", wrapExecuteError(field, err, limit)
	}

	return out, nil
}

func wrapExecuteError(field string, err error, limit int) error {
	limitErr, ok := templates.AsLimitError(err)

	switch {
	case !ok:
		return newTemplateError(field, err)
	case limitErr.Kind == templates.OutputLimit:
		return newTooLargeError(field, "more than "+formatBytes(limit), limit)
	default:
		return fmt.Errorf("%s: %w", field, limitErr)
	}
}

// newFunctions returns the functions that templates have in addition to those of Go templates.
func newFunctions(budget *templates.Budget) template.FuncMap {
	return template.FuncMap{
		"toJson": func(v any) (string, error) {
			if err := budget.CheckWork(jsonPerByte * templates.MaxPrintedSize(v)); err != nil {
				return "", err
			}

			out, err := toJSON(v)
			if err != nil {
				return "", err
			}

			return budget.CountWork(out)
		},
		"base64": func(v any) (string, error) {
			// toBase64 checks the size of a program itself, because its error names the fix.
			if text, ok := v.(string); ok {
				if err := budget.CheckWork(base64.StdEncoding.EncodedLen(len(text))); err != nil {
					return "", err
				}
			}

			out, err := toBase64(v)
			if err != nil {
				return "", err
			}

			return budget.CountWork(out)
		},
	}
}

// newTooLargeError returns the error for a text that exceeds its limit.
func newTooLargeError(field, size string, limit int) error {
	return fmt.Errorf("%s: %s after rendering, but the limit is %s: "+
		"write less into it, put large files into the machine's template or let the machine download them",
		field, size, formatBytes(limit))
}

func formatBytes(n int) string {
	if n >= 1024 && n%1024 == 0 {
		return fmt.Sprintf("%d KiB", n/1024)
	}

	return fmt.Sprintf("%d bytes", n)
}

// toJSON encodes a value as JSON on one line, without the escapes for HTML.
func toJSON(v any) (string, error) {
	var b bytes.Buffer

	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)

	if err := enc.Encode(v); err != nil {
		return "", fmt.Errorf("encode JSON: %w", err)
	}

	return strings.TrimSuffix(b.String(), "\n"), nil
}

// toBase64 encodes a text or a program in base64 on one line.
func toBase64(v any) (string, error) {
	switch v := v.(type) {
	case *Binary:
		return v.toBase64()
	case string:
		return base64.StdEncoding.EncodeToString([]byte(v)), nil
	case fmt.Stringer:
		return base64.StdEncoding.EncodeToString([]byte(v.String())), nil
	default:
		return "", fmt.Errorf("base64 accepts a text, not %T: use toJson first", v)
	}
}

// Patterns of the errors of text/template.
var (
	templatePosition = regexp.MustCompile(`^template: [^:]*:(\d+)(?::(\d+))?: (?:executing "[^"]*" at )?`)
	unknownVariable  = regexp.MustCompile(`^<([^>]*)>: can't evaluate field (\w+) in type (\S+)`)
	unknownFunction  = regexp.MustCompile(`^function "([^"]+)" not defined`)
)

// newTemplateError returns an error that names the field and the line of the problem in the template, and the
// fix.
func newTemplateError(field string, err error) error {
	text, line := err.Error(), ""
	if m := templatePosition.FindStringSubmatch(text); m != nil {
		text, line = text[len(m[0]):], " line "+m[1]
	}

	if m := unknownVariable.FindStringSubmatch(text); m != nil {
		names := fieldNames(Vars{})
		if strings.HasSuffix(m[3], "RunnerConfig") {
			names = fieldNames(RunnerConfig{})
		}

		return fmt.Errorf("%s%s: unknown variable %s (no %s): the variables are %s",
			field, line, m[1], m[2], strings.Join(names, ", "))
	}

	if m := unknownFunction.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s%s: unknown function %s: use the functions of Go templates, toJson and base64", field, line, m[1])
	}

	return fmt.Errorf("%s%s: %s: fix the template", field, line, text)
}

func (b *Binary) toBase64() (string, error) {
	if b == nil {
		return "", errors.New("the operator does not provide the bootstrap service for user data: leave it out of the template and " +
			"set bootstrap.delivery to image, download or iso")
	}

	if b.size > maxInlineBinary {
		return "", fmt.Errorf("the program has %d bytes, but a program in user data can have at most %s: leave it "+
			"out of the template and set bootstrap.delivery to image, download or iso", b.size, formatBytes(maxInlineBinary))
	}

	content := make([]byte, b.size)
	if n, err := b.content.ReadAt(content, 0); n < len(content) {
		return "", fmt.Errorf("read the program: %w", err)
	}

	return base64.StdEncoding.EncodeToString(content), nil
}

// MarshalJSON encodes the program in base64. toJson uses it.
func (b *Binary) MarshalJSON() ([]byte, error) {
	text, err := b.toBase64()
	if err != nil {
		return nil, err
	}

	return json.Marshal(text)
}

func fieldNames(v any) []string {
	t := reflect.TypeOf(v)
	names := make([]string, 0, t.NumField())

	for field := range t.Fields() {
		names = append(names, "."+field.Name)
	}

	return names
}

// redactError replaces secrets in the text of an error with "***". The result wraps no errors, because these
// would still contain the secrets. An ErrNetworkData stays one.
func redactError(err error, secrets []string) error {
	if err == nil {
		return nil
	}

	text := err.Error()

	for _, s := range secrets {
		if len(s) >= 4 {
			text = strings.ReplaceAll(text, s, "***")
		}
	}

	if errors.Is(err, ErrNetworkData) {
		return networkDataError{errors.New(text)}
	}

	return errors.New(text)
}
