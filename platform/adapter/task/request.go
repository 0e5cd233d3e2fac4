// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Body is the body of a call. Its values can't change the structure of a JSON document.
type Body struct {
	*Template
}

// Render renders the body. If the content type is JSON, or empty, a value inside of a string is escaped, and any
// other value must be exactly one JSON value. The text of other content types is not checked.
func (b *Body) Render(vars map[string]any, contentType string) (string, error) {
	pieces, err := b.renderPieces(vars)
	if err != nil {
		return "", err
	}

	text := joinPieces(pieces)
	if !isJSON(contentType) || strings.TrimSpace(text) == "" {
		return text, nil
	}

	return fillJSON(pieces)
}

func joinPieces(pieces []piece) string {
	var out strings.Builder
	for _, part := range pieces {
		out.WriteString(part.text)
	}

	return out.String()
}

// isJSON reports whether a content type is JSON (RFC 6839). The default of a call is JSON.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)

	return contentType == "" || err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// fillJSON returns a JSON document with the values of its slots.
func fillJSON(pieces []piece) (string, error) {
	var (
		out                   strings.Builder
		isInString, isEscaped bool
		// rejected is the first value that is not JSON.
		rejected *piece
	)

	for i, part := range pieces {
		switch {
		case part.source == "":
			for _, c := range []byte(part.text) {
				isInString = isInString != (c == '"' && !isEscaped)
				isEscaped = isInString && c == '\\' && !isEscaped
			}

			out.WriteString(part.text)
		case isEscaped:
			return "", newNotJSONError(pieces[:i])
		case isInString:
			out.WriteString(escapeJSON(part.text))
		case json.Valid([]byte(part.text)):
			out.WriteString(part.text)
		default:
			out.WriteString("0")

			if rejected == nil {
				rejected = &pieces[i]
			}
		}
	}

	switch {
	case !json.Valid([]byte(out.String())):
		return "", newNotJSONError([]piece{{text: out.String()}})
	case rejected != nil:
		return "", valueErrorf(*rejected, "is not one JSON value: put the template in double quotes to send it as a string")
	default:
		return out.String(), exactjson.Check([]byte(out.String()), nil)
	}
}

// notJSONError is the error of a body whose Content-Type is JSON and whose text is not.
type notJSONError struct {
	line int
}

// Error returns the line and the fix.
func (e *notJSONError) Error() string {
	return fmt.Sprintf("line %d: the body is not JSON; for another format set the header Content-Type", e.line)
}

// newNotJSONError returns the error of a text, with the line in which it stops being JSON.
func newNotJSONError(pieces []piece) error {
	text := []byte(joinPieces(pieces))
	end := len(text)

	var (
		value     any
		syntaxErr *json.SyntaxError
	)

	if errors.As(json.Unmarshal(text, &value), &syntaxErr) {
		end = min(end, int(syntaxErr.Offset))
	}

	return &notJSONError{line: 1 + bytes.Count(text[:end], []byte("\n"))}
}

// escapeJSON returns a text as the inner part of a JSON string.
func escapeJSON(text string) string {
	var out bytes.Buffer

	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)

	_ = encoder.Encode(text) //nolint:errchkjson // a string can always be encoded

	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(out.String(), "\n"), `"`), `"`)
}

// compileBody compiles the body of a call. If its text has no control structures, it also checks that the text is JSON.
func (l *loader) compileBody(keyPath strictyaml.Path, in *adapter.APICall) *Body {
	found := &slots{}

	compiled := l.compileWithSlots(keyPath, in.Body, found)
	if compiled == nil {
		return nil
	}

	contentType := ""

	for _, header := range in.Headers {
		if strings.EqualFold(header.Name, "Content-Type") {
			contentType = header.Value
		}
	}

	if compiled.IsConstant() {
		found.sample = in.Body
	}

	if found.hasControl || !isJSON(contentType) {
		return &Body{compiled}
	}

	sample := compiled.slots.split(found.sample)
	for i := range sample {
		if sample[i].source != "" {
			sample[i].text = "0" // valid inside and outside of strings
		}
	}

	var (
		notJSON *notJSONError
		place   *exactjson.Error
	)

	switch _, err := fillJSON(sample); {
	case errors.As(err, &notJSON):
		l.problems = append(l.problems, l.problemInLine(keyPath, notJSON.line, "the body is not JSON").
			WithHint("for another format set the header Content-Type"))
	case errors.As(err, &place) && len(found.sources) == 0:
		l.addProblem(keyPath, "%v", place)
	}

	return &Body{compiled}
}

// URL is the URL of a call. Its values can't change the structure of the URL, except for values at its start, such as
// a base URL.
type URL struct {
	*Template
}

// Render renders the URL.
func (u *URL) Render(vars map[string]any) (string, error) {
	pieces, err := u.renderPieces(vars)
	if err != nil {
		return "", err
	}

	// written is the author's text so far.
	var written strings.Builder

	for i, part := range pieces {
		if part.source == "" {
			written.WriteString(part.text)

			continue
		}

		if written.Len() == 0 {
			continue
		}

		next := ""
		if i+1 < len(pieces) {
			next = pieces[i+1].text
		}

		if err := checkURLValue(part, written.String(), next); err != nil {
			return "", err
		}
	}

	return joinPieces(pieces), nil
}

// checkURLValue checks that a value does not change the structure of the URL into which it is inserted. The texts before
// and next are what the task file's author has written: all text before the value, and the text after it.
func checkURLValue(part piece, before, next string) error {
	_, afterScheme, hasScheme := strings.Cut(before, "://")

	forbidden, isQuery := `/?#\`, false

	switch {
	case strings.Contains(before, "?"):
		forbidden, isQuery = "&#", true
	case hasScheme && !strings.Contains(afterScheme, "/"):
		forbidden += "@"
	}

	at := strings.IndexFunc(part.text, func(c rune) bool {
		return strings.ContainsRune(forbidden, c) || unicode.IsSpace(c) || unicode.IsControl(c)
	})

	switch {
	case at >= 0:
		c, _ := utf8.DecodeRuneInString(part.text[at:])

		shown := string(c)
		if unicode.IsSpace(c) || unicode.IsControl(c) {
			shown = strconv.QuoteRune(c)
		}

		return valueErrorf(part, "has the character %s, which would change the URL: escape it with urlquery", shown)
	case isQuery:
		return nil
	case part.text == "." || part.text == "..":
		return valueErrorf(part, "is a relative path, which would change the URL")
	case part.text == "" && strings.HasSuffix(before, "/") && (next == "" || strings.ContainsAny(next[:1], "/?#")):
		return valueErrorf(part, "is empty, which would change the URL")
	default:
		return nil
	}
}
