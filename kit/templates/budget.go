// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package templates

import "fmt"

// What an execution may take where Limits say nothing.
const (
	// DefaultSteps is how many nodes of a template may be executed.
	DefaultSteps = 100_000
	// MaxDepth is how deep templates may call each other.
	MaxDepth = 100
	// MaxActions is how many actions a text may have: the parser goes one deeper for each
	// that opens a block.
	MaxActions = 5000
)

// Limits bound one template.
type Limits struct {
	// Output is the most bytes of the result.
	Output int
	// Work is the most bytes of all texts that functions make on the way.
	Work int
	// Steps is the most nodes that are executed; 0: DefaultSteps.
	Steps int
}

// Kind says which limit was reached.
type Kind int

// The limits.
const (
	Output Kind = iota
	Work
	Steps
	Depth
	Actions
)

// LimitError is a template that takes more than it may.
type LimitError struct {
	Kind  Kind
	Limit int
}

// Error names the limit and what to do.
func (e *LimitError) Error() string {
	switch e.Kind {
	case Output:
		return fmt.Sprintf("the template writes more than %d bytes: write less", e.Limit)
	case Work:
		return fmt.Sprintf("the functions of the template make more than %d bytes of text in all: make fewer or shorter ones", e.Limit)
	case Steps:
		return fmt.Sprintf("the template takes more than %d steps in its loops and calls: loop over less", e.Limit)
	case Depth:
		return fmt.Sprintf("templates call each other more than %d deep: end the recursion sooner", e.Limit)
	default:
		return fmt.Sprintf("the text has more than %d actions: write fewer", e.Limit)
	}
}

// Budget is what is left of one execution. Functions of templates take from it.
type Budget struct {
	limits             Limits
	work, steps, depth int
}

// Room refuses a text that could have that many bytes; it takes nothing.
func (b *Budget) Room(bytes int) error {
	if bytes < 0 || bytes > b.limits.Work-b.work {
		return &LimitError{Kind: Work, Limit: b.limits.Work}
	}

	return nil
}

// Made counts a text that a function made.
func (b *Budget) Made(text string) (string, error) {
	if err := b.Room(len(text)); err != nil {
		return "", err
	}

	b.work += len(text)

	return text, nil
}

func (b *Budget) step(nodes int) (string, error) {
	if b.steps += nodes; b.steps > b.limits.Steps {
		return "", &LimitError{Kind: Steps, Limit: b.limits.Steps}
	}

	return "", nil
}

func (b *Budget) enter() (string, error) {
	b.depth++
	if b.depth > MaxDepth {
		return "", &LimitError{Kind: Depth, Limit: MaxDepth}
	}

	return "", nil
}

func (b *Budget) leave() string {
	b.depth--

	return ""
}
