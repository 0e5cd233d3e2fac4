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

// maxInlineBinary is the largest program that a template may write into user data.
const maxInlineBinary = 64 << 10

// workPerByte is how many bytes functions may make in all for each byte that the result
// may have.
const workPerByte = 4

// jsonPerByte is how many bytes one of a text takes in JSON at most, as \u0000.
const jsonPerByte = 6

// expand executes one of the user's templates. Field names the text in errors; limit is
// the largest result in bytes.
func expand(field, text string, vars *Vars, limit int) (string, error) {
	if text == "" {
		return "", nil
	}

	tmpl, err := templates.Parse(field, text,
		templates.Limits{Output: limit, Work: workPerByte * limit}, functions, nil)
	if err != nil {
		return "", expandError(field, err, limit)
	}

	out, err := tmpl.Execute(vars)
	if err != nil {
		return "", expandError(field, err, limit)
	}

	return out, nil
}

func expandError(field string, err error, limit int) error {
	reached, ok := templates.Limit(err)

	switch {
	case !ok:
		return templateError(field, err)
	case reached.Kind == templates.Output:
		return tooLarge(field, "more than "+bytesText(limit), limit)
	default:
		return fmt.Errorf("%s: %w", field, reached)
	}
}

// functions are those of templates besides Go's own.
func functions(budget *templates.Budget) template.FuncMap {
	return template.FuncMap{
		"toJson": func(v any) (string, error) {
			if err := budget.Room(jsonPerByte * templates.Size(v)); err != nil {
				return "", err
			}

			out, err := toJSON(v)
			if err != nil {
				return "", err
			}

			return budget.Made(out)
		},
		"base64": func(v any) (string, error) {
			// A program is measured by toBase64, which says what to do instead.
			if text, ok := v.(string); ok {
				if err := budget.Room(base64.StdEncoding.EncodedLen(len(text))); err != nil {
					return "", err
				}
			}

			out, err := toBase64(v)
			if err != nil {
				return "", err
			}

			return budget.Made(out)
		},
	}
}

// tooLarge is the error for a text beyond its limit.
func tooLarge(field, size string, limit int) error {
	return fmt.Errorf("%s: %s after rendering, at most %s may reach the machine: "+
		"write less into it, put large files into the machine's template or let the machine fetch them",
		field, size, bytesText(limit))
}

func bytesText(n int) string {
	if n >= 1024 && n%1024 == 0 {
		return fmt.Sprintf("%d KiB", n/1024)
	}

	return fmt.Sprintf("%d bytes", n)
}

// toJSON writes a value as JSON on one line, without the escapes meant for HTML.
func toJSON(v any) (string, error) {
	var b bytes.Buffer

	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)

	if err := enc.Encode(v); err != nil {
		return "", fmt.Errorf("write as JSON: %w", err)
	}

	return strings.TrimSuffix(b.String(), "\n"), nil
}

// toBase64 writes a text or a program in base64 on one line.
func toBase64(v any) (string, error) {
	switch v := v.(type) {
	case *Binary:
		return v.toBase64()
	case string:
		return base64.StdEncoding.EncodeToString([]byte(v)), nil
	case fmt.Stringer:
		return base64.StdEncoding.EncodeToString([]byte(v.String())), nil
	default:
		return "", fmt.Errorf("base64 takes a text, not %T: use toJson first", v)
	}
}

// The shapes of text/template's errors.
var (
	templatePlace   = regexp.MustCompile(`^template: [^:]*:(\d+)(?::(\d+))?: (?:executing "[^"]*" at )?`)
	unknownVariable = regexp.MustCompile(`^<([^>]*)>: can't evaluate field (\w+) in type (\S+)`)
	unknownFunction = regexp.MustCompile(`^function "([^"]+)" not defined`)
)

// templateError says in which field and line a template is wrong, and what to do.
func templateError(field string, err error) error {
	text, line := err.Error(), ""
	if m := templatePlace.FindStringSubmatch(text); m != nil {
		text, line = text[len(m[0]):], " line "+m[1]
	}

	if m := unknownVariable.FindStringSubmatch(text); m != nil {
		known := fieldNames(Vars{})
		if strings.HasSuffix(m[3], "RunnerConfig") {
			known = fieldNames(RunnerConfig{})
		}

		return fmt.Errorf("%s%s: unknown variable %s (no %s): the variables are %s",
			field, line, m[1], m[2], strings.Join(known, ", "))
	}

	if m := unknownFunction.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s%s: unknown function %s: besides those of Go templates there are toJson and base64", field, line, m[1])
	}

	return fmt.Errorf("%s%s: %s: fix the template", field, line, text)
}

func (b *Binary) toBase64() (string, error) {
	if b == nil {
		return "", errors.New("the program is not at hand here: leave it out of the template and " +
			"set bootstrap.delivery to image, download or iso")
	}

	if b.size > maxInlineBinary {
		return "", fmt.Errorf("the program has %d bytes and user data can carry %s of it: leave it out of the "+
			"template and set bootstrap.delivery to image, download or iso", b.size, bytesText(maxInlineBinary))
	}

	content := make([]byte, b.size)
	if n, err := b.content.ReadAt(content, 0); n < len(content) {
		return "", fmt.Errorf("read the program: %w", err)
	}

	return base64.StdEncoding.EncodeToString(content), nil
}

// MarshalJSON is for toJson.
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

// redact takes secrets out of an error's text. Wrapped errors would still hold them, so
// the result wraps nothing; it is an ErrNetworkData still.
func redact(err error, secrets []string) error {
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
