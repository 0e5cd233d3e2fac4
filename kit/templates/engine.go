// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"io"
	"text/template/parse"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
)

// Engine is a text that one of the packages parsed which execute Go templates.
type Engine interface {
	// trees are its templates, by which it is changed before it is executed.
	trees() []*parse.Tree
	// with is a copy that calls other functions.
	with(functions template.FuncMap) (executor, error)
}

type executor interface {
	Execute(out io.Writer, data any) error
}

// Parser makes an engine of a text; a key that a map does not have is an error when it is executed.
type Parser func(name, text string, functions template.FuncMap) (Engine, error)

// Plain executes templates as Go does, but for methods of values, which it does not call: a
// program that calls methods by the names that a template has keeps all there are (ADR 0057).
func Plain(name, text string, functions template.FuncMap) (Engine, error) {
	parsed, err := template.New(name).Option("missingkey=error").Funcs(functions).Parse(text)

	return EngineOf(parsed, func(one *template.Template) *parse.Tree { return one.Tree }), err
}

// templateOf is what the packages' templates have in common.
type templateOf[T any] interface {
	executor

	Clone() (T, error)
	Funcs(functions template.FuncMap) T
	Templates() []T
}

type engineOf[T templateOf[T]] struct {
	parsed T
	tree   func(T) *parse.Tree
}

// EngineOf is the engine of a package whose templates are T.
func EngineOf[T templateOf[T]](parsed T, tree func(T) *parse.Tree) Engine {
	return engineOf[T]{parsed, tree}
}

func (e engineOf[T]) trees() []*parse.Tree {
	var out []*parse.Tree

	for _, one := range e.parsed.Templates() {
		if tree := e.tree(one); tree != nil && tree.Root != nil {
			out = append(out, tree)
		}
	}

	return out
}

func (e engineOf[T]) with(functions template.FuncMap) (executor, error) {
	copied, err := e.parsed.Clone()
	if err != nil {
		return nil, err
	}

	return copied.Funcs(functions), nil
}
