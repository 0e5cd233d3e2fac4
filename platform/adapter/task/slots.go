// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/template/parse"
	"unicode/utf8"

	"github.com/hyperfleet/hyperfleet/kit/templates"
)

// A slot is a value in a rendered text: the number of its action, and the value in an alphabet that has no meaning in
// YAML, JSON and URLs. The text around slots is the author's, so its structure is known before the slots are filled.
const (
	slotStart    = "\ue000"
	slotEnd      = "\ue001"
	slotFunction = "slot"
	// sampleValue is the value of each slot in a sample.
	sampleValue = "x"
)

var errReservedCharacter = errors.New("the characters U+E000 and U+E001 are reserved")

type slots struct {
	// sources are the actions, such as {{ .name }}, by the number of their slot.
	sources []string
	// sample is the rendered text with sampleValue as each value. hasControl is true if the template has control
	// structures, so that the sample is incomplete.
	sample     string
	hasControl bool
}

// renew returns empty slots for another template of the same source. They get the same numbers. It returns nil
// if s is nil.
func (s *slots) renew() *slots {
	if s == nil {
		return nil
	}

	return &slots{}
}

// add adds an action, and returns the number of its slot as an argument of slotFunction.
func (s *slots) add(source string) parse.Node {
	s.sources = append(s.sources, source)
	number := len(s.sources) - 1

	return &parse.NumberNode{NodeType: parse.NodeNumber, IsInt: true, Int64: int64(number), Text: strconv.Itoa(number)}
}

// addSample adds a node of the template, which was walked last, to the sample.
func (s *slots) addSample(in parse.Node) {
	switch typed := in.(type) {
	case *parse.TextNode:
		s.sample += string(typed.Text)
	case *parse.ActionNode:
		if len(typed.Pipe.Decl) == 0 {
			s.sample += encodeSlot(len(s.sources)-1, sampleValue)
		}
	default:
		s.hasControl = true
	}
}

func encodeSlot(number int, value string) string {
	return slotStart + strconv.Itoa(number) + "." + base64.RawURLEncoding.EncodeToString([]byte(value)) + slotEnd
}

func newSlotFunc(budget *templates.Budget) func(number int, value any) (string, error) {
	return func(number int, value any) (string, error) {
		if value == nil {
			return "", errNoValue
		}

		text := toText(value)
		if !utf8.ValidString(text) {
			return "", errInvalidUTF8
		}

		if _, err := budget.CountWork(text); err != nil {
			return "", err
		}

		return encodeSlot(number, text), nil
	}
}

// piece is a part of a rendered text.
type piece struct {
	text string
	// source is the action whose value the text is. It is empty if the text is the author's.
	source string
}

// split splits a rendered text at its slots. s may be nil, if the template has no actions.
func (s *slots) split(text string) []piece {
	if s == nil {
		return []piece{{text: text}}
	}

	var out []piece

	for text != "" {
		before, rest, _ := strings.Cut(text, slotStart)

		slot, after, found := strings.Cut(rest, slotEnd)
		if !found {
			return append(out, piece{text: text})
		}

		if before != "" {
			out = append(out, piece{text: before})
		}

		// Only encodeSlot writes these characters, because the author's text can't contain them.
		number, value, _ := strings.Cut(slot, ".")
		source, _ := strconv.Atoi(number)
		decoded, _ := base64.RawURLEncoding.DecodeString(value)

		out, text = append(out, piece{text: string(decoded), source: s.sources[source]}), after
	}

	return out
}

func (s *slots) fill(text string) string {
	if s == nil || !strings.Contains(text, slotStart) {
		return text
	}

	var out strings.Builder
	for _, part := range s.split(text) {
		out.WriteString(part.text)
	}

	return out.String()
}

// listSources returns the actions whose values are in a text, for messages.
func (s *slots) listSources(text string) string {
	var out []string

	for _, part := range s.split(text) {
		if part.source != "" {
			out = append(out, part.source)
		}
	}

	return strings.Join(out, ", ")
}

// renderPieces renders a template whose slots are set, and splits the text.
func (t *Template) renderPieces(vars map[string]any) ([]piece, error) {
	if pieces, isPlain := t.renderPlain(vars); isPlain {
		return pieces, nil
	}

	text, err := t.Render(vars)
	if err != nil {
		return nil, err
	}

	return t.slots.split(text), nil
}

// valueErrorf returns the error of a value that can't be filled in. It names the action and not the value.
func valueErrorf(part piece, format string, args ...any) error {
	return fmt.Errorf("the value of %s "+format, append([]any{part.source}, args...)...)
}
